"""The Chat tab: what is on it, and what its buttons do."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import gradio as gr
from gradio.components import Component

from specchat.chat.conversation import is_blank, well_formed
from specchat.ui.desk import Desk
from specchat.ui.lens import LEGEND, Lens
from specchat.ui.session import Reply, Session, Turn
from specchat.ui.stream import batches
from specchat.ui.transcript import EXAMPLES, OPENING, settled
from specchat.worker import Job

log = logging.getLogger(__name__)

Updates = dict[Component, object]

PRESSED = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-act]');
  if (button) trigger('select', {act: button.dataset.act, n: Number(button.dataset.n)});
});
"""
"""Reports which button of the transcript was pressed: a name and a number, never text."""

GROWING = "${value.before}${value.settled}${value.tail}${value.after}"
NOTHING = {"before": "", "settled": "", "tail": "", "after": ""}


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
            self.log = gr.HTML(settled([]), js_on_load=PRESSED, apply_default_css=False, elem_id="sc-settled")
            self.live = gr.HTML(
                NOTHING, html_template=GROWING, js_on_load=None, apply_default_css=False, elem_id="sc-live"
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
            self.lens = gr.Checkbox(label="Token lens", elem_id="sc-lens", container=False, min_width=100)
            self.rejected = gr.Checkbox(
                label="Rejected proposals",
                elem_id="sc-rejected",
                container=False,
                visible=False,
                min_width=140,
            )

    def wire(self) -> None:
        """Binds the handlers. Generating ones may run side by side: the worker's queue does the waiting."""
        alone = {"show_progress": "hidden", "api_visibility": "private"}
        writing = {**alone, "concurrency_limit": None, "outputs": self._outputs()}
        at_once = {**alone, "queue": False, "outputs": self._outputs()}
        gr.on([self.box.submit], self.send, inputs=[self.box], **writing)
        self.retry.click(self.again, **writing)
        self.log.select(self.pressed, inputs=[self.box], **writing)
        self.box.stop(self.stop, show_progress="hidden", api_visibility="private", queue=False)
        self.edit.click(self.edit_last, inputs=[self.box], **at_once)
        self.undo.click(self.take_back, inputs=[self.box], **at_once)
        self.new.click(self.clear, **at_once)
        gr.on(
            [self.lens.change, self.rejected.change], self.look, inputs=[self.lens, self.rejected], **at_once
        )

    def _outputs(self) -> list[Component]:
        return [self.log, self.live, self.panel, self.status, self.box, self.retry, self.edit, self.undo, self.new,
                self.rejected, self.legend]  # fmt: skip

    @property
    def idle_outputs(self) -> list[Component]:
        """What `idle` may change."""
        return [self.status, self.panel]

    @property
    def _nothing(self) -> Updates:
        """No change. (Gradio takes an empty dict for a missing value.)"""
        return {self.status: gr.skip()}

    # -- handlers that write ----------------------------------------------------------------------

    def send(self, text: str, request: gr.Request) -> Iterator[Updates]:
        """Enter, or the Send button."""
        session = self.desk.sessions.of(request.session_hash)
        text = well_formed(text or "")
        if is_blank(text) or not session.claim():
            yield self._nothing
            return
        yield from self._write(session, session.ask(text), clear=True)

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
        n = int(event.n)
        if event.act == "example" and 0 <= n < len(EXAMPLES):
            yield from self.send(EXAMPLES[n].text, request)
        elif event.act == "edit":
            yield self._edit(self.desk.sessions.of(request.session_hash), n)
        else:
            yield self._nothing

    def _write(self, session: Session, turn: Turn, clear: bool) -> Iterator[Updates]:
        """Submits the conversation and follows its reply to the end. The session was claimed; it is released here."""
        job = Job(tuple(session.messages()), session.live, session.system, self.desk.options.stop_strings)
        try:
            handle = session.handle = self.desk.worker.submit(job)
            yield self._opening(session, clear)
            view = LiveView(self, session, turn.reply)
            for batch in batches(handle):
                for event in batch:
                    turn.reply.take(event)
                if not turn.reply.done:
                    yield view.updates(bool(batch)) or self._nothing
        except Exception as problem:
            log.exception("showing a reply failed")
            turn.reply.fail(
                f"The page could not show it ({type(problem).__name__}); the terminal has the details."
            )
        finally:
            # Reached by the end, by an exception, and by a closed tab alike: nothing may go on writing unseen.
            session.release()
        yield self._closing(session)

    def _opening(self, session: Session, clear: bool) -> Updates:
        box = {"submit_btn": False, "stop_btn": "Stop"}
        return {
            self.log: self._log(session),
            self.live: NOTHING,
            self.panel: self.desk.panel(session),
            self.status: self.desk.status(session),
            self.box: gr.update(value="", **box) if clear else gr.update(**box),
            **{button: gr.update(interactive=False) for button in (self.retry, self.undo, self.new)},
            self.edit: gr.update(interactive=False, value="Edit"),
        }

    def _closing(self, session: Session) -> Updates:
        return {
            self.live: NOTHING,
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
            self.edit: gr.update(interactive=some, value="Keep as it was" if editing else "Edit"),
        }

    def _log(self, session: Session) -> str:
        spell = self.desk.spell if session.rejected else None
        return settled(session.turns, session.lens, spell, session.editing)

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

    def idle(self, session: Session) -> Updates:
        """For the page's timer: the status line and the panel's memory, when nothing is being written here."""
        if session.busy:
            return {}
        status, panel = self.desk.status(session), self.desk.panel(session)
        if (status, panel) == session.shown:
            return {}
        session.shown = (status, panel)
        return {self.status: status, self.panel: panel}


class LiveView:
    """The reply being written, as text or as tokens; an update carries what is new and a short tail."""

    PANEL_EVERY = 3
    """The panel's numbers change on every third update: faster could not be read."""

    def __init__(self, tab: ChatTab, session: Session, reply: Reply) -> None:
        self._tab = tab
        self._session = session
        self._reply = reply
        self._look: tuple[bool, bool] | None = None
        self._lens = Lens(None)
        self._count = 0

    def updates(self, news: bool) -> Updates:
        """The page's next state; {} when nothing is to be seen."""
        tab = self._tab
        found: Updates = {}
        status = tab.desk.status(self._session)
        if status != self._session.shown[0]:
            self._session.shown = (status, "")
            found[tab.status] = status
        look = (self._session.lens, self._session.rejected)
        if not news and look == self._look:
            return found
        if look != self._look:
            self._look, self._lens = look, Lens(tab.desk.spell if look[1] else None)
        if self._reply.rounds and self._count % self.PANEL_EVERY == 0:
            found[tab.panel] = tab.desk.panel(self._session)
        self._count += bool(self._reply.rounds)
        found[tab.live] = self._value()
        return found

    def _value(self) -> dict[str, str]:
        if self._session.lens:
            self._lens.update(self._reply)
            kind, head, tail = "sc-lens", self._lens.html, ""
        else:
            self._reply.growing.update(self._reply.text)
            kind, head, tail = "sc-text", self._reply.growing.settled, self._reply.growing.tail
        return {
            "before": f'{OPENING}<div class="{kind} sc-writing">',
            "settled": head,
            "tail": tail,
            "after": "</div></div>",
        }
