"""The Chat tab: what is on it, and what its buttons do."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import gradio as gr
from gradio.components import Component

from specchat.chat.conversation import is_blank, well_formed
from specchat.ui import live
from specchat.ui.chat_save import ChatSave, note_pair
from specchat.ui.desk import Desk, status_line
from specchat.ui.lens import LEGEND
from specchat.ui.live import LiveView
from specchat.ui.session import Session, Turn
from specchat.ui.stream import batches
from specchat.ui.tab import not_shown
from specchat.ui.transcript import EXAMPLES, PRESSED, empty, settled
from specchat.worker import Job

log = logging.getLogger(__name__)

Updates = dict[Component, object]


class ChatTab:
    """Components of the tab and their handlers. One object a page; what differs by tab is in the session."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        with gr.Row(elem_id="sc-main", equal_height=False):
            with gr.Column(elem_id="sc-chat", scale=3, min_width=320):
                self._build_chat()
            with gr.Column(elem_id="sc-side", scale=1, min_width=300):
                self.panel = gr.HTML(
                    desk.panel(Session(desk.sessions.of("").live)), js_on_load=None, apply_default_css=False
                )

    def _build_chat(self) -> None:
        with gr.Column(elem_id="sc-log"):
            self.log = gr.HTML(
                empty(self.desk.notes), js_on_load=PRESSED, apply_default_css=False, elem_id="sc-settled"
            )
            self.live = gr.HTML(
                live.NOTHING,
                html_template=live.TEMPLATE,
                js_on_load=None,
                apply_default_css=False,
                elem_id="sc-live",
            )
        self.legend = gr.HTML(
            "", js_on_load=None, apply_default_css=False, elem_id="sc-legend", visible=False
        )
        self.status = gr.HTML(
            self.desk.status(self.desk.sessions.of("")),
            js_on_load=None,
            apply_default_css=False,
            elem_id="sc-state",
        )
        self.box = gr.Textbox(
            show_label=False, label="Message", placeholder="Write a message",
            lines=1, max_lines=8, submit_btn="Send", autofocus=True, elem_id="sc-box",
            html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
        )  # fmt: skip
        with gr.Row(elem_id="sc-tools"):
            self.retry = gr.Button("Retry", size="sm", interactive=False, elem_id="sc-retry", min_width=60)
            self.edit = gr.Button("Edit", size="sm", interactive=False, elem_id="sc-edit-last", min_width=60)
            self.undo = gr.Button("Undo", size="sm", interactive=False, elem_id="sc-undo", min_width=60)
            self.new = gr.Button("New chat", size="sm", interactive=False, elem_id="sc-new", min_width=80)
            self.save = ChatSave(self.desk)
            self.lens = gr.Checkbox(label="Token lens", elem_id="sc-lens", container=False, min_width=100)
            self.rejected = gr.Checkbox(
                label="Rejected proposals", elem_id="sc-rejected", container=False, visible=False, min_width=140,
            )  # fmt: skip

    def wire(self) -> None:
        """Binds the handlers. Generating ones may run side by side: the worker's queue does the waiting."""
        alone = {"show_progress": "hidden", "api_visibility": "private"}
        writing = {**alone, "concurrency_limit": None, "outputs": self._outputs()}
        at_once = {**alone, "queue": False, "outputs": self._outputs()}
        gr.on([self.box.submit], self.send, inputs=[self.box], trigger_mode="multiple", **writing)
        self.retry.click(self.again, **writing)
        self.log.select(self.pressed, inputs=[self.box], **writing)
        self.box.stop(self.stop, show_progress="hidden", api_visibility="private", queue=False)
        self.edit.click(self.edit_last, inputs=[self.box], **at_once)
        self.undo.click(self.take_back, inputs=[self.box], **at_once)
        self.new.click(self.clear, **at_once)
        self.save.wire(self.status)
        gr.on(
            [self.lens.change, self.rejected.change], self.look, inputs=[self.lens, self.rejected], **at_once
        )

    def _outputs(self) -> list[Component]:
        return [self.log, self.live, self.panel, self.status, self.box, self.retry, self.edit, self.undo, self.new,
                self.rejected, self.legend, *self.save.buttons]  # fmt: skip

    @property
    def _parts(self) -> dict[live.Part, Component]:
        """Where each part that changes while a reply is being written is shown."""
        return {"live": self.live, "panel": self.panel, "status": self.status}

    @property
    def idle_outputs(self) -> list[Component]:
        """What `idle` may change."""
        return [self.log, self.status, self.panel]

    @property
    def _nothing(self) -> Updates:
        """No change. (Gradio takes an empty dict for a missing value.)"""
        return {self.status: gr.skip()}

    # -- handlers that write ----------------------------------------------------------------------

    def send(self, text: str, request: gr.Request) -> Iterator[Updates]:
        """Enter, or the Send button."""
        yield from self._ask(self.desk.sessions.of(request.session_hash), well_formed(text or ""), clear=True)

    def _ask(self, session: Session, text: str, clear: bool) -> Iterator[Updates]:
        if is_blank(text):
            yield self._hint(session, "Write a message first.")
        elif not session.claim():
            yield self._hint(session, "One reply at a time: wait for this one, or stop it.")
        else:
            yield from self._write(session, session.ask(text), clear)

    def _hint(self, session: Session, sentence: str) -> Updates:
        session.shown = ("", "")
        return {self.status: status_line("hint", sentence)}

    def again(self, request: gr.Request) -> Iterator[Updates]:
        """Writes the last reply once more."""
        session = self.desk.sessions.of(request.session_hash)
        if not session.turns or not session.claim():
            yield self._nothing
            return
        session.editing = len(session.turns) - 1
        yield from self._write(session, session.ask(session.turns[-1].user), clear=False)

    def pressed(self, text: str, request: gr.Request, event: gr.EventData) -> Iterator[Updates]:
        """A button inside the transcript: an example to send, or a message to edit."""
        session, n = self.desk.sessions.of(request.session_hash), int(event.n)
        if event.act == "example" and 0 <= n < len(EXAMPLES):
            yield from self._ask(session, EXAMPLES[n].text, clear=False)
        elif event.act == "edit":
            yield self._edit(session, n)
        else:
            yield self._nothing

    def _write(self, session: Session, turn: Turn, clear: bool) -> Iterator[Updates]:
        """Submits the conversation and follows its reply to the end. The session was claimed; it is released here."""
        job = Job(tuple(session.messages()), session.live, session.system, self.desk.options.stop_strings)
        try:
            turn.reply.job = job
            handle = session.handle = self.desk.worker.submit(job)
            yield self._opening(session, clear)
            view = LiveView(self.desk, session, turn.reply)
            for batch in batches(handle):
                for event in batch:
                    turn.reply.take(event)
                note_pair(self.desk, turn.reply)
                if not turn.reply.done:
                    seen = view.look(bool(batch))
                    yield {self._parts[name]: value for name, value in seen.items()} or self._nothing
        except Exception as problem:
            log.exception("showing a reply failed")
            turn.reply.fail(not_shown(problem))
        finally:
            # Reached by the end, by an exception, and by a closed tab alike: nothing may go on writing unseen.
            session.release()
        yield self._closing(session)

    def _opening(self, session: Session, clear: bool) -> Updates:
        box = {"submit_btn": False, "stop_btn": "Stop"}
        return {
            self.log: self._log(session),
            self.live: live.NOTHING,
            self.panel: self.desk.panel(session),
            self.status: self.desk.status(session),
            self.box: gr.update(value="", **box) if clear else gr.update(**box),
            **{button: gr.update(interactive=False) for button in (self.retry, self.undo, self.new)},
            **self.save.busy(),
            self.edit: gr.update(interactive=False, value="Edit"),
        }

    def _closing(self, session: Session) -> Updates:
        return {
            self.live: live.NOTHING,
            self.panel: self.desk.panel(session),
            self.box: gr.update(submit_btn="Send", stop_btn=False),
            **self._settled(session),
        }

    def _settled(self, session: Session) -> Updates:
        """What follows from the session when nothing is being written."""
        some = bool(session.turns)
        editing = session.editing is not None
        return {
            self.log: self._log(session),
            self.status: self.desk.status(session),
            **{button: gr.update(interactive=some and not editing) for button in (self.retry, self.undo)},
            self.new: gr.update(interactive=some),
            **self.save.settled(session),
            self.edit: gr.update(interactive=some, value="Keep as it was" if editing else "Edit"),
        }

    def _log(self, session: Session) -> str:
        if not session.turns:
            return empty(self.desk.notes)
        speller = self.desk.speller if session.rejected else None
        return settled(session.turns, session.lens, speller, session.editing)

    # -- handlers that do not ---------------------------------------------------------------------

    def stop(self, request: gr.Request) -> None:
        """Ends the reply within a round; its generator then shows what there is."""
        session = self.desk.sessions.of(request.session_hash)
        if session.handle is not None:
            session.handle.cancel()

    def edit_last(self, text: str, request: gr.Request) -> Updates:
        """Puts the last message into the box; pressed again, keeps it as it was."""
        session = self.desk.sessions.of(request.session_hash)
        if session.editing is None:
            return self._edit(session, len(session.turns) - 1)
        session.editing = None
        return {self.box: "", **self._settled(session)}

    def _edit(self, session: Session, n: int) -> Updates:
        if session.busy or not 0 <= n < len(session.turns):
            return self._nothing
        session.editing = n
        return {self.box: session.turns[n].user, **self._settled(session)}

    def take_back(self, text: str, request: gr.Request) -> Updates:
        """Removes the last message and its reply; the message returns to an empty box."""
        session = self.desk.sessions.of(request.session_hash)
        if session.busy or not session.turns:
            return self._nothing
        turn = session.turns.pop()
        session.editing = None
        box = {self.box: turn.user} if is_blank(text or "") else {}
        return {**box, self.panel: self.desk.panel(session), **self._settled(session)}

    def clear(self, request: gr.Request) -> Updates:
        """Begins a new conversation; the settings stay."""
        session = self.desk.sessions.of(request.session_hash)
        if session.busy:
            return self._nothing
        session.turns.clear()
        session.editing = None
        return {self.panel: self.desk.panel(session), **self._settled(session)}

    def look(self, lens: bool, rejected: bool, request: gr.Request) -> Updates:
        """Text or tokens; a reply being written follows at its next update."""
        session = self.desk.sessions.of(request.session_hash)
        session.lens, session.rejected = bool(lens), bool(rejected)
        legend = gr.update(value=LEGEND if lens else "", visible=bool(lens))
        return {
            self.log: self._log(session),
            self.rejected: gr.update(visible=bool(lens)),
            self.legend: legend,
        }

    @property
    def resumed_outputs(self) -> list[Component]:
        """What `resumed` may change."""
        return [*self._outputs(), self.lens]

    def resumed(self, session: Session) -> Updates:
        """The page was loaded again: everything about the conversation that it had shown."""
        if session.busy or not (session.turns or session.lens):
            return {}
        return {
            **self._closing(session),
            self.lens: session.lens,
            self.rejected: gr.update(value=session.rejected, visible=session.lens),
            self.legend: gr.update(value=LEGEND if session.lens else "", visible=session.lens),
        }

    def loaded(self, session: Session) -> Updates:
        """The pair has just been loaded: its notes are shown where a conversation has not begun."""
        return {} if session.turns else {self.log: self._log(session)}

    def idle(self, session: Session) -> Updates:
        """For the page's timer: the status line and the panel's memory, when nothing is being written here."""
        if session.busy:
            return {}
        status, panel = self.desk.status(session), self.desk.panel(session)
        if (status, panel) == session.shown:
            return {}
        session.shown = (status, panel)
        return {self.status: status, self.panel: panel}
