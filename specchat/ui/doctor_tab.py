"""The Doctor tab: why it is slow, and what to do about it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr
from gradio.components import Component

from specchat.chat.conversation import Message
from specchat.decode.settings import Settings
from specchat.lab import suite
from specchat.lab.doctor import Evidence, Remedy, examine
from specchat.lab.doctor_measure import Examination, Subject, Surroundings, diagnose
from specchat.ui import doctor_view as view
from specchat.ui.desk import Desk, status_line
from specchat.ui.session import Session
from specchat.ui.sidebar import Controls
from specchat.ui.tab import (
    OTHER_PAIR,
    PRESSED,
    ahead,
    conduct,
    fitting,
    is_loaded,
    news,
    sentence,
    stop,
    waiting,
)  # fmt: skip
from specchat.worker import Ended, Event, Task

if TYPE_CHECKING:
    from specchat.pair import Pair

Updates = dict[Component, object]

NAME = "doctor"
"""What the session's task is called."""

CHAT = "chat"
"""The choice of the last reply in the chat."""

KEPT = 40
"""Examinations remembered, of all tabs together, for their buttons."""

NOT_COMPARED = "Another pair was loaded meanwhile, so there is nothing to compare with."


@dataclass(frozen=True, slots=True)
class Kept:
    """An examination, and what it was made of. pair: `Pair.number` of the pair."""

    found: Examination
    subject: Subject
    pair: int


class DoctorTab:
    """Components of the tab and their handlers. The last examination is kept for each page load."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self.samples = suite.sample(suite.load(), 3)
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        plain = {"js_on_load": None, "apply_default_css": False}
        choices = [("the last reply in the chat", CHAT)]
        choices += [(f"a prompt of the suite: {p.category}", str(n)) for n, p in enumerate(self.samples)]
        with gr.Column(elem_id="sc-doctor"):
            gr.HTML(view.INTRO, **plain)
            with gr.Row(elem_id="sc-doctor-tools"):
                self.what = gr.Dropdown(
                    choices, value=CHAT, label="Examine", elem_id="sc-doctor-what", min_width=260, scale=0
                )
                self.go = gr.Button(
                    "Examine", variant="primary", elem_id="sc-doctor-go", min_width=100, scale=0
                )
                self.halt = gr.Button(
                    "Stop", interactive=False, elem_id="sc-doctor-stop", min_width=90, scale=0
                )
            self.status = gr.HTML(status_line("ready", "Ready"), elem_id="sc-doctor-status", **plain)
            self.board = gr.HTML(
                view.empty(), js_on_load=PRESSED, apply_default_css=False, elem_id="sc-doctor-board"
            )

    def wire(self) -> None:
        """Binds the handlers."""
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        measuring = {**quiet, "concurrency_limit": None, "trigger_mode": "multiple"}
        shown = [self.status, self.board, self.go, self.halt]
        self.go.click(self.run, inputs=[self.what], outputs=shown, **measuring)
        self.board.select(self.apply, outputs=[*shown, *self._settable().values()], **measuring)
        self.halt.click(self.stop, queue=False, **quiet)

    def _settable(self) -> dict[str, Component]:
        """The sidebar's controls that a remedy may move, by name."""
        return {name: getattr(self.controls, name) for name in ("on", "gamma", "drafter")}

    # -- handlers that measure ----------------------------------------------------------------------

    def run(self, what: str, request: gr.Request) -> Iterator[Updates]:
        """Examine."""
        session = self.desk.sessions.of(request.session_hash)
        subject, note = self._subject(session, str(what or CHAT))
        yield from self._examine(session, request, subject, session.live.get(), note=note)

    def apply(self, request: gr.Request, event: gr.EventData) -> Iterator[Updates]:
        """A card's button: the remedy is put in force, and the same is measured again."""
        session, n = self.desk.sessions.of(request.session_hash), int(event.n)
        kept = self._kept.get(request.session_hash or "")
        if kept is None or not 0 <= n < len(kept.found.findings):
            yield self._hint("That examination is no longer kept: examine once more.")
        elif not is_loaded(self.desk, kept.pair):
            yield self._hint(OTHER_PAIR)
        else:
            remedy = kept.found.findings[n].remedy
            settings = remedy.applied(kept.found.settings)
            yield from self._examine(session, request, kept.subject, settings, kept, remedy)

    def _moved(self, remedy: Remedy, settings: Settings) -> Updates:
        """The sidebar shows what was applied; its own change events come to the same settings."""
        values = {
            "on": settings.gamma > 0,
            **{name: value for name, value in remedy.change.items() if name != "gamma" or settings.gamma},
        }
        return {
            self.status: status_line(
                "reading", f"Applied: {view.changed(settings, list(remedy.change))}. Measuring again."
            ),
            **{
                control: values[name]
                for name, control in self._settable().items()
                if name in values and (name != "on" or "gamma" in remedy.change)
            },
        }

    def _examine(
        self, session: Session, request: gr.Request, subject: Subject, settings: Settings, before: Kept | None = None,
        remedy: Remedy | None = None, note: str = "",
    ) -> Iterator[Updates]:  # fmt: skip
        """remedy: put in force when the examination begins, so not by a button that is refused."""
        busy, asked = self.desk.worker.status().state == "busy", time.monotonic()

        def work(pair: Pair, cancelled: Callable[[], bool], put: Callable[[object], None]) -> object:
            waited = time.monotonic() - asked if busy else 0.0
            around = Surroundings(lambda: self.desk.worker.status().waiting, waited)
            found = diagnose(pair, subject, fitting(settings, pair), cancelled, put, around)
            return None if found is None else Kept(found, subject, pair.number)

        def opening() -> Updates:
            updates: Updates = {
                self.status: status_line("reading", "Starting"),
                self.board: view.working("Measuring"),
                self.go: gr.update(interactive=False),
                self.halt: gr.update(interactive=True),
            }
            if remedy is not None and remedy.change:
                session.live.set(remedy.applied(session.live.get()))
                updates |= self._moved(remedy, settings)
            return updates

        yield from conduct(
            self.desk, session, NAME, Task(work, "Examining"), opening=opening, underway=self._underway,
            closing=lambda last: self._closing(last, request.session_hash or "", settings, before, note),
            refused=self._hint("One examination at a time: wait for this one, or stop it."),
        )  # fmt: skip

    def _underway(self, batch: list[Event]) -> Updates:
        said, waits = news(batch), ahead(batch)
        if said:
            return {self.status: status_line("writing", f"{said[-1]} …")}
        return {self.status: gr.skip() if waits is None else waiting(self.desk, waits, "examination")}

    def _closing(
        self, last: Ended | None, tab: str, settings: Settings, before: Kept | None, note: str
    ) -> Updates:
        updates: Updates = {self.go: gr.update(interactive=True), self.halt: gr.update(interactive=False)}
        found = last.value if last is not None else None
        if isinstance(found, Kept):
            self._kept[tab] = found
            self._kept.move_to_end(tab)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            if before is not None and before.pair != found.pair:
                before, note = None, NOT_COMPARED
            updates[self.board] = view.result(found.found, None if before is None else before.found, note)
            updates[self.status] = status_line("ready", f"Examined. {found.found.findings[0].title}.")
        elif last is not None and "share a vocabulary" in last.problem:
            findings = examine(Evidence(settings, (), (), vocabulary=last.problem))
            updates[self.board] = f'<div class="sc-doctor">{view.cards(findings)}</div>'
            updates[self.status] = status_line("failed", "The pair could not be loaded.")
        elif last is not None and last.problem:
            updates[self.board] = sentence("The examination could not be made.", last.problem)
            updates[self.status] = status_line(
                "failed", "The examination could not be made. Ready for the next."
            )
        else:
            self._kept.pop(tab, None)
            updates[self.board] = view.empty()
            updates[self.status] = status_line("ready", "Stopped. Nothing is concluded from half of it.")
        return updates

    # -- the rest -------------------------------------------------------------------------------------

    def stop(self, request: gr.Request) -> None:
        """Ends the examination within a round."""
        stop(self.desk.sessions.of(request.session_hash), NAME)

    def _hint(self, text: str) -> Updates:
        return {self.status: status_line("hint", text)}

    def _subject(self, session: Session, what: str) -> tuple[Subject, str]:
        """What is examined, and a remark when it is not what was asked for."""
        if what == CHAT and session.turns:
            messages = session.messages()
            while messages and messages[-1].role != "user":
                messages.pop()
            if messages:
                rounds = tuple(session.turns[-1].reply.rounds) if session.turns[-1].reply.done else ()
                return Subject("the last reply in the chat", tuple(messages), session.system, rounds), ""
        n = int(what) if what.isdecimal() and int(what) < len(self.samples) else 0
        prompt = self.samples[n]
        note = ""
        if what == CHAT:
            note = (
                "The chat has no reply yet, so a prompt of the suite was examined: your own text may differ."
            )
        return Subject(f"{prompt.id}, of the suite", (Message("user", prompt.text),)), note
