"""The Records tab: saved replies, replayed and compared. Works without a pair."""

from __future__ import annotations

import logging
from pathlib import Path

import gradio as gr
from gradio.components import Component

from specchat.lab.export_csv import COLUMNS, as_csv
from specchat.lab.export_html import as_html
from specchat.lab.record_parts import Record
from specchat.lab.record_write import CONTAINS
from specchat.ui import chat_save, records_view
from specchat.ui.desk import Desk
from specchat.ui.records_deck import Deck
from specchat.ui.records_files import download_button, offer, uploaded, wire_download
from specchat.ui.records_player import Player
from specchat.ui.sidebar import Controls

log = logging.getLogger(__name__)

Updates = dict[Component, object]

NO_REPLY = "The chat has no finished reply yet."


class RecordsTab:
    """Components of the tab and their handlers. What a page has opened is in its own `Deck`."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self.deck = gr.State(Deck())
        self._html(records_view.INTRO)
        with gr.Row(elem_id="sc-records-open"):
            self.open = gr.UploadButton(
                "Open a record", size="sm", variant="primary", elem_id="sc-records-file"
            )
            self.last = gr.Button("The chat's last reply", size="sm", elem_id="sc-records-last")
            self.other = gr.UploadButton(
                "Compare with a record", size="sm", interactive=False, elem_id="sc-records-other"
            )
            self.other_last = gr.Button(
                "Compare with the chat's last reply",
                size="sm",
                interactive=False,
                elem_id="sc-records-other-last",
            )
            self.alone = gr.Button(
                "Close the comparison", size="sm", visible="hidden", elem_id="sc-records-alone"
            )
        self.said = self._html(records_view.said(""), "sc-records-said-line")
        self.choice = gr.Dropdown([], label="Reply", visible=False, elem_id="sc-records-choice")
        self.player = Player(self.deck)
        with gr.Row(elem_id="sc-records-export"):
            self.csv = gr.Button("Export CSV", size="sm", interactive=False, elem_id="sc-records-csv")
            self.html = gr.Button("Export HTML", size="sm", interactive=False, elem_id="sc-records-html")
            self.file = download_button("sc-records-download")
        self.below = self._html("")

    def _html(self, value: str, elem_id: str | None = None) -> gr.HTML:
        return gr.HTML(value, js_on_load=None, apply_default_css=False, elem_id=elem_id)

    def wire(self) -> None:
        """Binds the handlers."""
        self.player.wire()
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        at_once = {**quiet, "queue": False, "outputs": self._outputs}
        self.open.upload(self.open_file, inputs=[self.deck, self.open], **at_once)
        self.last.click(self.take_last, inputs=[self.deck], **at_once)
        self.other.upload(self.compare_file, inputs=[self.deck, self.other], **at_once)
        self.other_last.click(self.compare_last, inputs=[self.deck], **at_once)
        self.alone.click(self.close_comparison, inputs=[self.deck], **at_once)
        self.choice.input(self.choose, inputs=[self.deck, self.choice], **at_once)
        self.csv.click(self.export_csv, inputs=[self.deck], **at_once)
        self.html.click(self.export_html, inputs=[self.deck], **at_once)
        wire_download(self.file, "sc-records-download")

    @property
    def _outputs(self) -> list[Component]:
        return [self.said, self.choice, self.below, self.csv, self.html, self.other, self.other_last, self.alone,
                self.file, *self.player.outputs]  # fmt: skip

    # -- taking records up ------------------------------------------------------------------------

    def open_file(self, deck: Deck, path: str | None) -> Updates:
        """An uploaded file."""
        try:
            records = uploaded(path)
        except ValueError as problem:
            return {self.said: records_view.said(str(problem), wrong=True)}
        return self._take(deck, records, "")

    def take_last(self, deck: Deck, request: gr.Request) -> Updates:
        """The chat's last reply, without a file."""
        record = self._last(request)
        if record is None:
            return {self.said: records_view.said(NO_REPLY, wrong=True)}
        return self._take(deck, (record,), "The chat's last reply.")

    def _last(self, request: gr.Request) -> Record | None:
        session = self.desk.sessions.of(request.session_hash)
        replies = [turn.reply for turn in session.turns if chat_save.can_be_saved(turn.reply)]
        return chat_save.record(self.desk, replies[-1]) if replies else None

    def _take(self, deck: Deck, records: tuple[Record, ...], sentence: str) -> Updates:
        with deck.lock:
            deck.pause()
            deck.take(records)
        several = len(records) > 1
        choices = gr.update(choices=records_view.names(records), value=deck.chosen, visible=several)
        if several and not sentence:
            sentence = f"The file holds {len(records)} replies; the last one is shown."
        return {self.choice: choices, self.said: records_view.said(sentence), **self._shown(deck)}

    def choose(self, deck: Deck, n: int | None) -> Updates:
        """Another reply of the same file."""
        if deck.record is not None and isinstance(n, int):
            with deck.lock:
                deck.pause()
                deck.choose(n)
        return self._shown(deck)

    def compare_file(self, deck: Deck, path: str | None) -> Updates:
        """A second file, whose last reply is told against the one shown."""
        try:
            return self._compare(deck, uploaded(path)[-1])
        except ValueError as problem:
            return {self.said: records_view.said(str(problem), wrong=True)}

    def compare_last(self, deck: Deck, request: gr.Request) -> Updates:
        """The chat's last reply against the record shown."""
        record = self._last(request)
        if record is None:
            return {self.said: records_view.said(NO_REPLY, wrong=True)}
        return self._compare(deck, record)

    def _compare(self, deck: Deck, other: Record) -> Updates:
        deck.other = other if deck.record is not None else None
        return {self.said: records_view.said(""), **self._shown(deck)}

    def close_comparison(self, deck: Deck) -> Updates:
        """One record alone again."""
        deck.other = None
        return self._shown(deck)

    def _shown(self, deck: Deck) -> Updates:
        """Everything that follows from the deck."""
        some = deck.record is not None
        with deck.lock:
            return {
                **{
                    button: gr.update(interactive=some)
                    for button in (self.csv, self.html, self.other, self.other_last)
                },
                self.alone: gr.update(visible=True if deck.other is not None else "hidden"),
                self.below: records_view.below(deck),
                **self.player.shown(deck),
            }

    # -- sharing ----------------------------------------------------------------------------------

    def export_csv(self, deck: Deck) -> Updates:
        """The record as a table, one row a round."""
        return self._offer(
            "csv", as_csv(deck.record).encode() if deck.record else b"", f"Columns: {', '.join(COLUMNS)}."
        )

    def export_html(self, deck: Deck) -> Updates:
        """The record, or both, as one file that needs nothing else."""
        records = [record for record in (deck.record, deck.other) if record is not None]
        return self._offer("html", as_html(records).encode() if records else b"", f"It holds: {CONTAINS}")

    def _offer(self, ending: str, content: bytes, what: str) -> Updates:
        if not content:
            return {self.said: records_view.said("Open a record first.", wrong=True)}
        try:
            path = offer(content, ending)
        except OSError as problem:
            log.exception("an export failed")
            return {self.said: records_view.said(f"It could not be written: {problem}", wrong=True)}
        return {self.file: path, self.said: records_view.said(f"Written as {Path(path).name}. {what}")}
