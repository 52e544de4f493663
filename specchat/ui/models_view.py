"""The Models tab as HTML: the loaded pair, what speaks for and against another, how loading goes. All escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from specchat.model.catalog import HUB, PAIRS, Finding, PairOptions, Verdict
from specchat.model.provenance import accepted
from specchat.ui.panels import DASH, seconds, size, speed
from specchat.ui.sidebar import DRAFTERS
from specchat.worker import WorkerStatus

if TYPE_CHECKING:
    from specchat.pair import Memory, Pair

MARKS: dict[Verdict, tuple[str, str]] = {
    "yes": ("✓", "in order"),
    "no": ("✗", "stands in the way"),
    "note": ("i", "to know"),
    "open": ("?", "not known yet"),
}
"""How a finding begins: a mark for the eye and words for everybody."""


def loaded(pair: Pair | None, memory: Memory | None, status: WorkerStatus) -> str:
    """Everything there is to know of the pair in use."""
    if pair is None:
        text = (
            f"No pair is loaded. {status.message} Choose another pair and load it."
            if status.state == "failed"
            else f"Loading: {under_way(status)}"
        )
        return _card(f'<p class="sc-models-none">{escape(text)}</p>')
    rows = [*_models(pair, memory), *_ways(pair), *_room(pair, memory)]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in pair.notes)
    kept = f'<h3>Notes</h3><ul class="sc-models-notes">{notes}</ul>' if notes else ""
    return _card(f'<dl class="sc-models-facts">{cells}</dl>{kept}')


def _card(body: str) -> str:
    return f'<section class="sc-models-loaded" aria-label="The loaded pair"><h2>Loaded</h2>{body}</section>'


def _models(pair: Pair, memory: Memory | None) -> list[tuple[str, str]]:
    facts = pair.facts
    target = _model(
        pair.target_name,
        facts.target_weights if facts else 0,
        memory.target_weights if memory else 0,
        facts.options.target if facts else "",
    )
    source = facts.options.draft if facts and facts.options.draft not in OWN else ""
    held = memory.draft_weights if memory else 0
    draft = _model(pair.draft_name or "none", facts.draft_weights if facts else 0, held, source)
    if not held and pair.drafters:
        draft += _sub("adds no weights of its own")
    shares = accepted(facts.options) if facts else ()
    if shares:
        places = ", ".join(f"{100 * share:.0f}" for share in shares)
        draft += _sub(f"accepted on held-out texts when it was made: {places} %, by place in the block")
    return [("Target", target), ("Draft", draft)]


OWN = ("", "shallow", "self", "ngram", "none")


def _model(name: str, count: int, held: int, source: str) -> str:
    parts = [f"{weights(count)} weights"] if count else []
    parts += [f"{size(held)} in memory"] if held else []
    text = f"<b>{escape(name)}</b>"
    if parts:
        text += f'<span class="sc-models-sub">{escape(", ".join(parts))}</span>'
    if source and source != name:
        text += f'<code class="sc-models-path">{escape(source)}</code>'
    return text


def weights(count: float) -> str:
    """A number of weights: "135 million", "7.62 billion"."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} billion"
    return f"{count / 1e6:,.3g} million" if count >= 1e6 else f"{count:,.0f}"


def _ways(pair: Pair) -> list[tuple[str, str]]:
    names = [DRAFTERS.get(name, name) for name in pair.drafters]
    return [
        ("Device", escape(str(pair.target.device))),
        ("Multiplied", escape(pair.precision)),
        ("Drafters", escape("; ".join(names)) or "none: speculation is off"),
        ("Plain step", _step(pair)),
    ]


def _step(pair: Pair) -> str:
    if pair.plain_step_s <= 0:
        return DASH
    return (
        f"{pair.plain_step_s * 1000:.1f} ms, that is {speed(1 / pair.plain_step_s)} tok/s"
        f'<span class="sc-models-sub">{escape(pair.plain_step_source)}</span>'
    )


def _room(pair: Pair, memory: Memory | None) -> list[tuple[str, str]]:
    rows = [
        ("Context", f"{pair.capacity:,} tokens, reply included"),
        ("Vocabulary", f"{pair.target.vocab:,} token ids"),
    ]
    if memory is not None:
        now = (
            f"Caches {size(memory.caches)}; {size(memory.used)} used "
            f"{'on the GPU' if memory.kind == 'VRAM' else 'by this program'}, {size(memory.free)} free."
        )
        rows.append(("Memory now", escape(now)))
    if pair.facts is not None:
        rows.append(("Memory plan", f"{escape(pair.facts.plan.sentence)}{_sub('made before it was loaded')}"))
    return rows


def _sub(text: str) -> str:
    return f'<span class="sc-models-sub">{escape(text)}</span>'


# -- another pair -------------------------------------------------------------------------------------


def verdict(found: Sequence[Finding]) -> str:
    """All findings in a sentence or two."""
    against = [one for one in found if one.verdict == "no"]
    if against:
        what = "One thing stands" if len(against) == 1 else f"{len(against)} things stand"
        return f"This pair would not load. {what} in the way."
    if any(one.verdict == "open" for one in found):
        return "Nothing stands in the way so far; some of it only loading can show."
    return "This pair fits, together and in memory."


def asks_hub(found: Sequence[Finding]) -> bool:
    """Whether the hub could say more before anything large is fetched."""
    return any(one.verdict == "open" and HUB in one.text for one in found)


def findings(found: Sequence[Finding]) -> str:
    """A line each, with its mark, what it is about and the reason. What stands in the way comes first."""
    if not found:
        return ""
    ordered = sorted(found, key=lambda one: one.verdict != "no")
    lines = "".join(
        f'<li data-verdict="{one.verdict}"><i aria-hidden="true">{MARKS[one.verdict][0]}</i>'
        f"<div><b>{escape(one.topic)}</b> <em>{MARKS[one.verdict][1]}</em><span>{escape(one.text)}</span></div></li>"
        for one in ordered
    )
    return _result(
        f'<p class="sc-models-verdict">{escape(verdict(found))}</p><ul class="sc-models-lines">{lines}</ul>'
    )


def sentence(text: str) -> str:
    """One sentence in the findings' place."""
    return _result(f'<p class="sc-models-verdict">{escape(text)}</p>')


def _result(body: str) -> str:
    return f'<div class="sc-models-check" role="status" aria-live="polite">{body}</div>'


def progress(state: str, text: str) -> str:
    """How loading goes, or went. state: waiting, loading, done or failed."""
    if not text:
        return ""
    alert = ' role="alert"' if state == "failed" else ' role="status" aria-live="polite"'
    return f'<div class="sc-models-going" data-state="{escape(state)}"{alert}><i aria-hidden="true"></i><span>{escape(text)}</span></div>'


def under_way(status: WorkerStatus) -> str:
    """What the engine thread is doing about it."""
    return f"{status.message.rstrip('.')} ({seconds(int(status.seconds))})"


KNOWN: tuple[tuple[str, str], ...] = tuple(
    (
        "SmolLM2-135M with its trained draft: built in"
        if pair is PAIRS[0]
        else f"{pair.target.split('/')[-1]} with {pair.draft.split('/')[-1]}",
        pair.key,
    )
    for pair in PAIRS
)
"""The catalogue for a dropdown: what is shown, and the key."""


def why(key: str) -> str:
    """What the catalogue says about a pair, "" for an unknown key."""
    pair = next((pair for pair in PAIRS if pair.key == key), None)
    return "" if pair is None else f'<p class="sc-hint">{escape(pair.why)}</p>'


def known_key(options: PairOptions) -> str:
    """The catalogue's key for a choice, "" when it is none of its pairs."""
    draft = {pair.key: "" if pair is PAIRS[0] else pair.draft for pair in PAIRS}
    found = (pair.key for pair in PAIRS if (options.target, options.draft) == (pair.target, draft[pair.key]))
    return next(found, "")
