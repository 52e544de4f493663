"""The Chat tab: what its buttons do, and how a reply gets on the page."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator

import gradio as gr

from specchat.chat.conversation import is_blank, well_formed
from specchat.ui import live
from specchat.ui.chat_parts import ChatParts, Updates
from specchat.ui.chat_save import note_pair
from specchat.ui.desk import status_line
from specchat.ui.lens import LEGEND
from specchat.ui.live import LiveView, Seen
from specchat.ui.session import Session
from specchat.ui.stream import batches
from specchat.ui.tab import not_shown
from specchat.ui.transcript import EXAMPLES, empty, settled
from specchat.worker import Job
from specchat.yardstick import EVERY

log = logging.getLogger(__name__)


class ChatTab(ChatParts):
    """The handlers over the tab's components."""

    def wire(self) -> None:
        """Binds the handlers. Events begin a reply and end it; what is between them goes by way of `feed`.
        Replies may be followed side by side: the worker's queue does the waiting."""
        alone = {"show_progress": "hidden", "api_visibility": "private"}
        at_once = {**alone, "queue": False, "outputs": self._outputs()}
        # "multiple": the page may not have heard yet that the last one is over.
        gr.on([self.box.submit], self.send, inputs=[self.box], trigger_mode="multiple", **at_once)
        self.retry.click(self.again, **at_once)
        self.log.select(self.pressed, inputs=[self.box], **at_once)
        self.live.select(self.end, trigger_mode="multiple", **at_once)
        self.box.stop(self.stop, **at_once)
        self.edit.click(self.edit_last, inputs=[self.box], **at_once)
        self.undo.click(self.take_back, inputs=[self.box], **at_once)
        self.new.click(self.clear, **at_once)
        self.save.wire(self.status)
        gr.on(
            [self.lens.change, self.rejected.change], self.look, inputs=[self.lens, self.rejected], **at_once
        )

    # -- a reply ----------------------------------------------------------------------------------

    def send(self, text: str, request: gr.Request) -> Updates:
        """Enter, or the Send button."""
        return self._ask(self.desk.sessions.of(request.session_hash), well_formed(text or ""), clear=True)

    def _ask(self, session: Session, text: str, clear: bool) -> Updates:
        if is_blank(text):
            return self._hint(session, "Write a message first.")
        if not session.claim():
            return self._hint(session, "One reply at a time: wait for this one, or stop it.")
        return self._begin(session, text, clear)

    def _hint(self, session: Session, sentence: str) -> Updates:
        session.shown, session.hinted = ("", ""), time.monotonic()
        return {self.status: status_line("hint", sentence)}

    def again(self, request: gr.Request) -> Updates:
        """Writes the last reply once more."""
        session = self.desk.sessions.of(request.session_hash)
        if not session.turns or not session.claim():
            return self._nothing
        session.editing = len(session.turns) - 1
        return self._begin(session, session.turns[-1].user, clear=False)

    def pressed(self, text: str, request: gr.Request, event: gr.EventData) -> Updates:
        """A button inside the transcript: an example to send, or a message to edit."""
        session, n = self.desk.sessions.of(request.session_hash), int(event.n)
        if event.act == "example" and 0 <= n < len(EXAMPLES):
            return self._ask(session, EXAMPLES[n].text, clear=False)
        return self._edit(session, n) if event.act == "edit" else self._nothing

    def _begin(self, session: Session, text: str, clear: bool) -> Updates:
        """Submits the conversation. The session was claimed; `follow` releases it."""
        turn = session.ask(text)
        try:
            stops = self.desk.options.stop_strings
            job = Job(tuple(session.messages()), session.live, session.system, stops, EVERY)
            turn.reply.job = job
            ticket = session.offer(turn.reply, self.desk.worker.submit(job))
            return self._opening(session, ticket, clear)
        except Exception as problem:
            log.exception("a reply could not be begun")
            turn.reply.fail(not_shown(problem))
            if not session.abandon():
                session.release(None)
            return self._closing(session)

    def follow(self, ticket: str) -> Generator[Seen, None, None]:
        """What the page is to show of the reply that was begun with this ticket, until its end; nothing where none was."""
        session = self.desk.sessions.with_ticket(ticket)
        begun = session.taken(ticket) if session is not None else None
        if session is None or begun is None:
            return
        reply, handle = begun
        try:
            view = LiveView(self.desk, session, reply)
            for batch in batches(handle):
                for event in batch:
                    reply.take(event)
                note_pair(self.desk, reply)
                if not reply.done:
                    yield view.look(bool(batch))
        except Exception as problem:
            log.exception("showing a reply failed")
            reply.fail(not_shown(problem))
        finally:
            # Reached by the end, by an exception, and by a closed tab alike: nothing may go on writing unseen.
            session.release(handle)

    def end(self, request: gr.Request) -> Updates:
        """What a reply leaves behind, once it has been followed to its end; nothing when the next one has begun."""
        session = self.desk.sessions.of(request.session_hash)
        return self._nothing if session.busy else self._closing(session)

    def _opening(self, session: Session, ticket: str, clear: bool) -> Updates:
        box = {"submit_btn": False, "stop_btn": "Stop"}
        return {
            self.log: self._log(session),
            self.live: ticket,
            self.panel: self.desk.panel(session),
            self.status: self.desk.status(session),
            self.box: gr.update(value="", **box) if clear else gr.update(**box),
            **{button: gr.update(interactive=False) for button in (self.retry, self.undo, self.new)},
            **self.save.busy(),
            self.edit: gr.update(interactive=False, value="Edit"),
        }

    def _closing(self, session: Session) -> Updates:
        return {
            self.live: self.over(session.ticket),
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

    # -- everything else --------------------------------------------------------------------------

    def stop(self, request: gr.Request) -> Updates:
        """Ends the reply within a round; whoever follows it then shows what there is."""
        session = self.desk.sessions.of(request.session_hash)
        if session.handle is not None:
            session.handle.cancel()
        session.abandon()
        return self.end(request)

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
        if session.busy or live.hinted(session):
            return {}
        status, panel = self.desk.status(session), self.desk.panel(session)
        if (status, panel) == session.shown:
            return {}
        session.shown = (status, panel)
        return {self.status: status, self.panel: panel}
