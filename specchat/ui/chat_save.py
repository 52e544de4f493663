"""Saving replies of the chat: two buttons under the conversation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gradio as gr
from gradio.components import Component

from specchat.lab.record import facts, record_of
from specchat.lab.record_parts import Record
from specchat.lab.record_write import as_bytes
from specchat.ui.desk import Desk, status_line
from specchat.ui.records_files import download_button, offer, wire_download
from specchat.ui.session import Reply, Session

log = logging.getLogger(__name__)

Updates = dict[Component, object]

NOTHING = "There is nothing to save yet: no reply has been written."


def note_pair(desk: Desk, reply: Reply) -> None:
    """Keeps with a reply which pair writes it; another may be loaded afterwards."""
    pair = desk.worker.pair
    if reply.pair is None and reply.rounds and pair is not None:
        reply.pair, reply.pair_number = facts(pair), pair.number


def can_be_saved(reply: Reply) -> bool:
    """It is over, and has at least one round."""
    return reply.done and bool(reply.rounds) and reply.job is not None


def record(desk: Desk, reply: Reply) -> Record:
    """The record of a reply that can be saved."""
    assert reply.job is not None and reply.finished is not None
    shown = sum(len(piece.text) for piece in reply.pieces)
    return record_of(
        reply.job, reply.pair, reply.reading, reply.rounds, reply.pieces, reply.in_force, reply.finished,
        reply.text[shown:], partial(desk.spell, reply),
    )  # fmt: skip


class ChatSave:
    """ "Save" keeps the last reply, "Save all" every reply of the conversation in one file."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.one = gr.Button("Save", size="sm", interactive=False, elem_id="sc-save", min_width=60)
        self.all = gr.Button("Save all", size="sm", visible=False, elem_id="sc-save-all", min_width=70)
        self.file = download_button("sc-save-file")

    @property
    def buttons(self) -> list[Component]:
        """What `busy` and `settled` may change."""
        return [self.one, self.all]

    def wire(self, status: Component) -> None:
        """Binds the handlers; status: where they say what happened."""
        quiet = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

        def save(session: Session, replies: Sequence[Reply]) -> Updates:
            some = [reply for reply in replies if can_be_saved(reply)]
            if not some:
                return {status: status_line("hint", NOTHING)}
            try:
                path = offer(as_bytes([record(self.desk, reply) for reply in some]))
            except (OSError, ValueError) as problem:
                log.exception("a reply could not be saved")
                return {status: status_line("hint", f"It could not be saved: {problem}")}
            count = "the reply" if len(some) == 1 else f"{len(some)} replies"
            said = f"Saved {count} as {Path(path).name}. The file holds the conversation's text."
            return {self.file: path, status: status_line("hint", said)}

        def last(request: gr.Request) -> Updates:
            session = self.desk.sessions.of(request.session_hash)
            return save(session, [turn.reply for turn in session.turns if can_be_saved(turn.reply)][-1:])

        def every(request: gr.Request) -> Updates:
            session = self.desk.sessions.of(request.session_hash)
            return save(session, [turn.reply for turn in session.turns])

        self.one.click(last, outputs=[self.file, status], **quiet)
        self.all.click(every, outputs=[self.file, status], **quiet)
        wire_download(self.file, "sc-save-file")

    def busy(self) -> Updates:
        """While a reply is being written."""
        return {self.one: gr.update(interactive=False), self.all: gr.update(interactive=False)}

    def settled(self, session: Session) -> Updates:
        """What can be saved now."""
        count = sum(can_be_saved(turn.reply) for turn in session.turns)
        return {
            self.one: gr.update(interactive=count > 0),
            self.all: gr.update(visible=count > 1, interactive=True),
        }
