"""What every tab of the page shares: the worker, the open sessions, the sentence that says how things stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from html import escape

from specchat.chat.stream import text_of
from specchat.decode.engine import Settings
from specchat.model.catalog import PairOptions
from specchat.ui.meter import Meter
from specchat.ui.panels import Yardstick, live_panel, seconds
from specchat.ui.session import Reply, Session
from specchat.ui.sessions import Sessions
from specchat.worker import Live, Worker

Spell = Callable[[int], str]

SPELLED = 8192
"""Texts of ids that are remembered."""

ANSWERING = "Answering"
"""What the worker says it is doing while it writes a reply; a task of the lab has another word."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a page is built with besides its worker and settings."""

    title: str = "SpecChat"
    system: str = ""
    stop_strings: tuple[str, ...] = ()
    pair: PairOptions = field(default_factory=PairOptions)
    """What the worker was started with: the choice that the Models tab begins with."""


class Desk:
    """One page: reads the worker, never touches a model."""

    def __init__(self, worker: Worker, settings: Settings, options: Options) -> None:
        self.worker = worker
        self.settings = settings
        self.options = options
        self.sessions = Sessions(lambda: Session(Live(settings), system=options.system))
        self._spelled: dict[tuple[int, int], str] = {}

    def speller(self, reply: Reply) -> Spell | None:
        """`spell` for this reply; None when the pair that wrote it is not the one that is loaded."""
        pair = self.worker.pair
        return partial(self.spell, reply) if pair is not None and pair.number == reply.pair_number else None

    def spell(self, reply: Reply, token: int) -> str:
        """One id's text, for proposals that were never shown; "" unless the pair that wrote the reply is loaded."""
        pair = self.worker.pair
        if pair is None or pair.number != reply.pair_number:
            return ""
        text = self._spelled.get((pair.number, token))
        if text is None:
            if len(self._spelled) >= SPELLED:
                self._spelled.clear()
            text = self._spelled[pair.number, token] = text_of(pair.tokenizer, [token])
        return text

    def panel(self, session: Session) -> str:
        """The live panel for the session's last reply."""
        pair = self.worker.pair
        plain = Yardstick() if pair is None else Yardstick(pair.plain_step_s, pair.plain_step_source)
        meter = session.turns[-1].reply.meter if session.turns else Meter()
        now = session.live.get()
        chosen = now.gamma > 0 and (now.adaptive or now.guard)
        return live_panel(meter, now.gamma, self.worker.memory(), plain, chosen)

    def pair_line(self) -> str:
        """Which two models are talking, and what was remarked when they were put together."""
        pair = self.worker.pair
        if pair is None:
            return '<span class="sc-pair">&nbsp;</span>'
        names = f"<b>{escape(pair.target_name)}</b>"
        if pair.draft_name:
            names += f' <span class="sc-with">with draft</span> <b>{escape(pair.draft_name)}</b>'
        return f'<span class="sc-pair" title="{escape(" ".join((f"{pair.precision}.", *pair.notes)))}">{names}</span>'

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the pair before the first message."""
        pair = self.worker.pair
        return () if pair is None else pair.notes

    def status(self, session: Session) -> str:
        """The status line: a state for the eye and a sentence for everybody."""
        state, sentence = self._idle(session) if not session.busy else self._waiting(session.turns[-1].reply)
        return status_line(state, sentence)

    def _idle(self, session: Session) -> tuple[str, str]:
        now = self.worker.status()
        if now.state == "loading":
            return "loading", f"Loading: {now.message.rstrip('.')} ({seconds(int(now.seconds))})"
        if now.state == "failed":
            return "failed", f"The models could not be loaded. {now.message}"
        if session.editing is not None:
            return "editing", "Editing: sending replaces this message and everything after it."
        if now.state == "busy":
            return "ready", _meanwhile(now.message)
        if session.turns and session.turns[-1].reply.finished is not None:
            return "ready", _afterwards(session.turns[-1].reply)
        return "ready", "Ready"

    def _waiting(self, reply: Reply) -> tuple[str, str]:
        now = self.worker.status()
        if now.state == "loading":
            return "loading", f"Loading: {now.message.rstrip('.')}. Your message is next."
        if reply.ahead:
            if now.message != ANSWERING:
                lab = f"the lab ({now.message.lower()})"
                return "queued", f"Waiting for {lab}: your message is answered when it ends, or is stopped."
            others = "1 reply is" if reply.ahead == 1 else f"{reply.ahead} replies are"
            return "queued", f"Waiting behind another tab: {others} written first."
        if reply.reading is None:
            return "reading", "Starting"
        if not reply.rounds:
            return "reading", f"Reading the prompt: {reply.reading.prompt_tokens} tokens"
        return "writing", "Writing"


def _meanwhile(doing: str) -> str:
    """Somebody else has the models: a reply, or a measurement by its own word."""
    if doing == ANSWERING:
        return "Ready. Another tab's reply is being written; yours would wait its turn."
    return f"Ready. The lab has the models ({doing.lower()}); a message would wait its turn."


def _afterwards(reply: Reply) -> str:
    assert reply.finished is not None
    return {
        "error": "The last reply failed. Ready for the next.",
        "cancelled": "Stopped. What was written is kept.",
        "length": "Ready. The reply ended at max tokens.",
        "context": "Ready. The reply ended because the context is full.",
    }.get(reply.finished.reason, "Ready")


def status_line(state: str, sentence: str) -> str:
    """The same element each time, so that a screen reader hears only what changed."""
    return (
        f'<div class="sc-status" data-state="{escape(state)}" role="status" aria-live="polite">'
        f'<i></i><span title="{escape(sentence)}">{escape(sentence)}</span></div>'
    )
