"""The player of the Records tab: a record's text, tokens and numbers by its own clock."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr
from gradio.components import Component

from specchat.ui import records_view
from specchat.ui.lens import LEGEND
from specchat.ui.records_deck import Deck
from specchat.ui.stream import Pace

Updates = dict[Component, object]

SPEEDS = [("0.5×", 0.5), ("1×", 1.0), ("2×", 2.0), ("4×", 4.0)]

PANEL_EVERY = 3
"""The panel changes with every third update, as in the chat."""


class Player:
    """Components and handlers. Plays whatever the page's deck holds; built where it is to stand."""

    def __init__(self, deck: gr.State) -> None:
        self.deck = deck
        with gr.Row(elem_id="sc-records-main", equal_height=False):
            with gr.Column(elem_id="sc-records-play", scale=3, min_width=300):
                self._build()
            with gr.Column(elem_id="sc-records-side", scale=1, min_width=300):
                self.panel = gr.HTML(records_view.panel(Deck()), js_on_load=None, apply_default_css=False)

    def _build(self) -> None:
        with gr.Row(elem_id="sc-records-tools"):
            off = {"size": "sm", "interactive": False, "min_width": 64}
            self.play = gr.Button("Play", elem_id="sc-records-start", variant="primary", **off)
            self.pause = gr.Button("Pause", elem_id="sc-records-pause", **off)
            self.restart = gr.Button("Restart", elem_id="sc-records-restart", **off)
            self.end = gr.Button("To the end", elem_id="sc-records-end", **off)
            self.speed = gr.Radio(
                SPEEDS,
                value=1.0,
                label="Speed",
                show_label=False,
                container=False,
                elem_id="sc-records-speed",
            )
            self.lens = gr.Checkbox(
                label="Token lens", elem_id="sc-records-lens", container=False, min_width=100
            )
            self.rejected = gr.Checkbox(
                label="Rejected proposals",
                elem_id="sc-records-rejected",
                container=False,
                visible=False,
                min_width=140,
            )
        self.clock = gr.HTML(records_view.clock(Deck()), js_on_load=None, apply_default_css=False)
        with gr.Column(elem_id="sc-records-log"):
            self.facts = gr.HTML(records_view.EMPTY, js_on_load=None, apply_default_css=False)
            self.screen = gr.HTML(
                records_view.NOTHING, html_template=records_view.TEMPLATE, js_on_load=None, apply_default_css=False,
                elem_id="sc-records-screen",
            )  # fmt: skip
        self.legend = gr.HTML("", js_on_load=None, apply_default_css=False, visible=False)

    def wire(self) -> None:
        """Binds the handlers. The playing one runs beside the others, which steer it through the deck."""
        quiet = {"show_progress": "hidden", "api_visibility": "private", "outputs": self.outputs}
        playing = {**quiet, "concurrency_limit": None, "trigger_mode": "multiple"}
        self.play.click(self.run, inputs=[self.deck], **playing)
        self.restart.click(self.run_again, inputs=[self.deck], **playing)
        self.pause.click(self.hold, inputs=[self.deck], queue=False, **quiet)
        self.end.click(self.to_the_end, inputs=[self.deck], queue=False, **quiet)
        self.speed.change(self.set_speed, inputs=[self.deck, self.speed], queue=False, **quiet)
        looks = [self.lens.change, self.rejected.change]
        gr.on(looks, self.look, inputs=[self.deck, self.lens, self.rejected], queue=False, **quiet)

    @property
    def outputs(self) -> list[Component]:
        """Everything its handlers may change."""
        return [self.facts, self.screen, self.clock, self.panel, self.play, self.pause, self.restart, self.end,
                self.rejected, self.legend]  # fmt: skip

    def run(self, deck: Deck) -> Iterator[Updates]:
        """Plays on from where it stands, or from the start when it was at its end."""
        if deck.record is None:
            yield {self.clock: gr.skip()}
            return
        pace, looks = Pace(), 0
        with deck.lock:
            run, updates = deck.play(), {**self.moving(deck), **self.buttons(deck)}
        try:
            while updates:
                yield updates
                pace.wait()
                pace.start()
                with deck.lock:
                    going = deck.plays(run)
                    news = going and deck.tick()
                    looks += news
                    updates = self._step(deck, news, looks) if going else {}
        finally:
            with deck.lock:
                if deck.run == run:
                    deck.pause()
        if deck.run == run:
            # Over or held: a newer run shows itself.
            yield {**self.moving(deck), **self.buttons(deck)}

    def _step(self, deck: Deck, news: bool, looks: int) -> Updates:
        if not news:
            return {self.clock: records_view.clock(deck)}
        return self.moving(deck, with_panel=looks % PANEL_EVERY == 1)

    def run_again(self, deck: Deck) -> Iterator[Updates]:
        """Plays from the request on."""
        with deck.lock:
            deck.restart()
        yield from self.run(deck)

    def hold(self, deck: Deck) -> Updates:
        """Stops where it is; Play goes on from there."""
        with deck.lock:
            deck.pause()
            return {**self.moving(deck), **self.buttons(deck)}

    def to_the_end(self, deck: Deck) -> Updates:
        """Shows the whole reply at once."""
        with deck.lock:
            deck.finish()
            return {**self.moving(deck), **self.buttons(deck)}

    def set_speed(self, deck: Deck, speed: object) -> Updates:
        """In force at once, also while playing."""
        deck.speed = float(speed) if isinstance(speed, int | float) and 0.1 <= speed <= 10 else 1.0
        return {self.clock: gr.skip()}

    def look(self, deck: Deck, lens: bool, rejected: bool) -> Updates:
        """Text or tokens."""
        with deck.lock:
            deck.look(bool(lens), bool(rejected))
            screen = records_view.screen(deck)
        return {
            self.screen: screen,
            self.rejected: gr.update(visible=bool(lens)),
            self.legend: gr.update(value=LEGEND if lens else "", visible=bool(lens)),
        }

    def moving(self, deck: Deck, with_panel: bool = True) -> Updates:
        """What changes while it plays."""
        panel: Updates = {self.panel: records_view.panel(deck)} if with_panel else {}
        return {self.screen: records_view.screen(deck), self.clock: records_view.clock(deck), **panel}

    def buttons(self, deck: Deck) -> Updates:
        """Which of its buttons can be pressed."""
        some, playing = deck.record is not None, deck.playing
        return {
            self.play: gr.update(interactive=some and not playing),
            self.pause: gr.update(interactive=some and playing),
            self.restart: gr.update(interactive=some),
            self.end: gr.update(interactive=some),
        }

    def shown(self, deck: Deck) -> Updates:
        """All of it, after the deck has taken up something else."""
        return {self.facts: records_view.facts(deck), **self.moving(deck), **self.buttons(deck)}
