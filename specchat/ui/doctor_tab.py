"""The Doctor tab: why it is slow, and what to do about it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from specchat.ui.tab import ahead, ended, follow, news, stop
from specchat.worker import Ended, Event, Task

if TYPE_CHECKING:
    from specchat.pair import Pair

log = logging.getLogger(__name__)

Updates = dict[Component, object]

NAME = "doctor"
"""What the session's task is called."""

CHAT = "chat"
"""The choice of the last reply in the chat."""

KEPT = 40
"""Examinations remembered, of all tabs together, for their buttons."""

PRESSED = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-act]');
  if (button) trigger('select', {n: Number(button.dataset.n)});
});
"""


class DoctorTab:
    """Components of the tab and their handlers. The last examination is kept for each page load."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self.samples = suite.sample(suite.load(), 3)
        self._kept: OrderedDict[str, tuple[Examination, Subject]] = OrderedDict()
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
        """The sidebar's controls that a remedy may move, by name; those that this page has."""
        names = ("on", "gamma", "drafter", "guard", "adaptive", "confidence")
        return {name: getattr(self.controls, name) for name in names if hasattr(self.controls, name)}

    # -- handlers that measure ----------------------------------------------------------------------

    def run(self, what: str, request: gr.Request) -> Iterator[Updates]:
        """Examine."""
        session = self.desk.sessions.of(request.session_hash)
        subject, note = self._subject(session, str(what or CHAT))
        yield from self._examine(session, request, subject, session.live.get(), None, note)

    def apply(self, request: gr.Request, event: gr.EventData) -> Iterator[Updates]:
        """A card's button: the remedy is put in force, and the same is measured again."""
        session, n = self.desk.sessions.of(request.session_hash), int(event.n)
        kept = self._kept.get(request.session_hash or "")
        if kept is None or not 0 <= n < len(kept[0].findings):
            yield self._hint("That examination is no longer kept: examine once more.")
            return
        if NAME in session.tasks:
            yield self._hint("One examination at a time: wait for this one, or stop it.")
            return
        before, subject = kept
        remedy = before.findings[n].remedy
        settings = remedy.applied(before.settings)
        if remedy.change:
            session.live.set(remedy.applied(session.live.get()))
            yield self._moved(remedy, settings)
        yield from self._examine(session, request, subject, settings, before)

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
        self, session: Session, request: gr.Request, subject: Subject, settings: Settings, before: Examination | None,
        note: str = "",
    ) -> Iterator[Updates]:  # fmt: skip
        if NAME in session.tasks:
            yield self._hint("One examination at a time: wait for this one, or stop it.")
            return
        busy, asked = self.desk.worker.status().state == "busy", time.monotonic()

        def work(pair: Pair, cancelled: Callable[[], bool], put: Callable[[object], None]) -> object:
            waited = time.monotonic() - asked if busy else 0.0
            around = Surroundings(lambda: self.desk.worker.status().waiting, waited)
            return diagnose(pair, subject, _fitting(settings, pair), cancelled, put, around)

        yield {
            self.status: status_line("reading", "Starting"),
            self.board: view.working("Measuring"),
            self.go: gr.update(interactive=False),
            self.halt: gr.update(interactive=True),
        }
        last: Ended | None = None
        try:
            for batch in follow(self.desk, session, NAME, Task(work, "Examining")):
                last = ended(batch)
                if last is None:
                    yield self._underway(batch)
        except Exception as problem:
            log.exception("showing an examination failed")
            last = Ended(
                problem=f"The page could not show it ({type(problem).__name__}); the terminal has the details."
            )
        yield self._closing(last, request.session_hash or "", subject, settings, before, note)

    def _underway(self, batch: list[Event]) -> Updates:
        said, waits = news(batch), ahead(batch)
        if said:
            return {self.status: status_line("writing", f"{said[-1]} …")}
        if waits is None:
            return {self.status: gr.skip()}
        loading = self.desk.worker.status().state == "loading"
        text = "Waiting for the models." if loading else "Waiting for what is being written first."
        return {self.status: status_line("loading" if loading else "queued", text)}

    def _closing(
        self, last: Ended | None, tab: str, subject: Subject, settings: Settings, before: Examination | None, note: str
    ) -> Updates:  # fmt: skip
        updates: Updates = {self.go: gr.update(interactive=True), self.halt: gr.update(interactive=False)}
        found = last.value if last is not None else None
        if isinstance(found, Examination):
            self._kept[tab] = (found, subject)
            self._kept.move_to_end(tab)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            first = found.findings[0]
            updates[self.board] = view.result(found, before, note)
            updates[self.status] = status_line("ready", f"Examined. {first.title}.")
        elif last is not None and "share a vocabulary" in last.problem:
            findings = examine(Evidence(settings, (), (), vocabulary=last.problem))
            updates[self.board] = f'<div class="sc-doctor">{view.cards(findings)}</div>'
            updates[self.status] = status_line("failed", "The pair could not be loaded.")
        elif last is not None and last.problem:
            updates[self.board] = view.sentence("The examination could not be made.", last.problem)
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


def _fitting(settings: Settings, pair: Pair) -> Settings:
    """The settings with a drafter that this pair has."""
    known = settings.drafter in pair.drafters
    return settings if known else replace(settings, drafter=pair.default_drafter)
