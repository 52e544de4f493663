"""The conversation as HTML: what was said, and the line of numbers kept under every reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from specchat.lab.words import REASONS, nothing_drafted, percent
from specchat.ui.lens import Lens
from specchat.ui.markdown import render
from specchat.ui.panels import seconds, speed
from specchat.ui.session import Reply, Turn


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt to begin with. kind: what it is an example of."""

    kind: str
    text: str


EXAMPLES = (
    Example("Code", "Write a Python function that counts how often each word occurs in a text."),
    Example("List", "List ten fruits, one a line, each with its colour."),
    Example(
        "Translation", "Translate into French: The train to the mountains leaves at nine in the morning."
    ),
    Example("Story", "Tell a short story about a lighthouse keeper and a storm."),
)


def empty(notes: Sequence[str] = ()) -> str:
    """What a conversation shows before its first message."""
    buttons = "".join(
        f'<button type="button" class="sc-example" data-act="example" data-n="{n}">'
        f"<b>{escape(example.kind)}</b><span>{escape(example.text)}</span></button>"
        for n, example in enumerate(EXAMPLES)
    )
    return (
        '<div class="sc-empty"><h2>Ask something</h2>'
        "<p>A small draft model guesses ahead, the target model checks the guesses in one go. "
        "The text is the target's; the panel shows what the guessing saves.</p>"
        f'<div class="sc-examples">{buttons}</div>{_notes(notes)}</div>'
    )


Speller = Callable[[Reply], Callable[[int], str] | None]
"""How the ids of a reply are spelled: id → text, or None when its pair is not loaded any more."""

NOT_SPELLED = "Its rejected proposals are not shown: the pair that made them is not loaded any more."


def settled(
    turns: Sequence[Turn], lens: bool = False, speller: Speller | None = None, editing: int | None = None
) -> str:
    """Every turn (one at least); of a reply still being written only the question. lens: tokens instead of text.

    speller: given to show in the lens what was turned down too.
    """
    return "".join(_turn(n, turn, lens, speller, n == editing) for n, turn in enumerate(turns))


def _turn(n: int, turn: Turn, lens: bool, speller: Speller | None, editing: bool) -> str:
    mark = " sc-editing" if editing else ""
    user = (
        f'<div class="sc-user{mark}" data-testid="user"><h3 class="sc-sr">You</h3>'
        f'<div class="sc-said">{escape(turn.user)}</div>'
        f'<button type="button" class="sc-edit" data-act="edit" data-n="{n}" aria-label="Edit this message">Edit</button>'
        "</div>"
    )
    return user + (reply(turn.reply, lens, speller) if turn.reply.done else "")


def reply(answer: Reply, lens: bool, speller: Speller | None) -> str:
    """A finished reply: its text or tokens, what went wrong if anything did, and its numbers."""
    if lens and answer.pieces:
        spell = speller(answer) if speller is not None else None
        tokens = Lens(spell)
        tokens.update(answer)
        body = f'<div class="sc-lens">{tokens.html}</div>'
        if speller is not None and spell is None and any(event.rejected for event in answer.rounds):
            body += _notes((NOT_SPELLED,))
    else:
        body = f'<div class="sc-text">{render(answer.text)}</div>' if answer.text else ""
    return f"{OPENING}{body}{_notice(answer)}{stats_line(answer)}</div>"


PRESSED = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-act]');
  if (button) trigger('select', {act: button.dataset.act, n: Number(button.dataset.n)});
});
"""
"""Reports which button of the transcript was pressed: a name and a number, never text."""

OPENING = '<div class="sc-bot" data-testid="bot"><h3 class="sc-sr">Reply</h3>'
"""How a reply begins, finished or not."""


def _notice(answer: Reply) -> str:
    finished = answer.finished
    assert finished is not None
    if finished.reason == "error":
        sentence = finished.notice or "The reply could not be written."
        return (
            f'<p class="sc-error" role="alert"><b>This reply failed.</b> {escape(sentence)} '
            "The conversation is kept.</p>"
        )
    notes = [note for note in (*(answer.reading.notes if answer.reading else ()), finished.notice) if note]
    if finished.reason == "cancelled" and not answer.text:
        notes.append("Stopped before the first word.")
    return _notes(notes)


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="sc-note">{escape(note)}</p>' for note in notes)


def stats_line(answer: Reply, ended: str = "") -> str:
    """tokens · seconds · tok/s · first token · tokens/round · acceptance · prompt · how it ended.

    ended: in other words than the reply's own reason.
    """
    finished, stats = answer.finished, answer.meter.stats
    if finished is None or (finished.reason == "error" and not stats.rounds):
        return ""
    parts: list[tuple[str, str]] = []
    if stats.emitted:
        parts += [
            (f"{stats.emitted} tokens", "Tokens of this reply, its end token included."),
            (
                seconds(max(finished.seconds, stats.elapsed_s)),
                "From the request to the end of the last round.",
            ),
            (f"{speed(stats.tok_per_s)} tok/s", "Tokens after the first round over the seconds after it."),
            (
                f"first token {seconds(stats.first_token_s)}",
                "From the request to the end of the first round.",
            ),
            (f"{stats.tokens_per_round:.2f} tokens/round", "Emitted tokens over rounds, 1 to γ+1."),
        ]
        rate = f"{percent(stats.acceptance_rate)} accepted" if stats.drafted else nothing_drafted(stats)
        parts.append((rate, "Accepted proposals over the proposals that the target judged."))
    if stats.prefill is not None:
        read = f"prompt {stats.prefill.read} read, {stats.prefill.reused} reused"
        parts.append((read, "Prompt tokens newly read, and those found in the cache."))
    parts.append((ended or REASONS[finished.reason], "How the reply ended."))
    last = len(parts) - 1
    cells = " ".join(
        f'<span title="{tip}">{escape(text)}{" ·" if n < last else ""}</span>'
        for n, (text, tip) in enumerate(parts)
    )
    return f'<p class="sc-stats" data-testid="stats">{cells}</p>'
