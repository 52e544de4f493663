"""The Race tab: one prompt in two or three lanes on the loaded pair, replayed side by side."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr
from gradio.components import Component

from specchat.chat.conversation import is_blank, well_formed
from specchat.decode.settings import Settings
from specchat.lab.measure import prompt_of
from specchat.lab.race import MOST_REPEATS, Cancelled, Put, Race, race
from specchat.ui import race_view as view
from specchat.ui.desk import Desk, status_line
from specchat.ui.race_lanes import LaneControls, Unfit, fitted
from specchat.ui.race_result import result
from specchat.ui.race_view import Board
from specchat.ui.sidebar import Controls
from specchat.ui.tab import OTHER_PAIR, PRESSED, ahead, conduct, is_loaded, news, sentence, stop, waiting
from specchat.worker import Ended, Event, Task

if TYPE_CHECKING:
    from specchat.pair import Pair

Updates = dict[Component, object]

NAME = "race"
"""What the session's task is called."""

KEPT = 40
"""Races remembered, of all tabs together, to show another repeat of; the page itself keeps what it shows."""

REPLAYED = "if (window.specchatRace) window.specchatRace(element);"
"""Hands the board to the page's script (assets/race.js)."""

NO_LONGER = "That race is no longer kept: run it again."


@dataclass(frozen=True, slots=True)
class Raced:
    """A race that was run, and what it was run with. pair: `Pair.number` of the pair."""

    race: Race
    prompt: str
    system: str
    pair: int

    def board(self, repeat: int) -> str:
        """With the texts and the replay of this repeat."""
        return result(self.race, self.prompt, repeat, self.system)


class RaceTab:
    """Components of the tab and their handlers. One object a page; the finished races are kept by page load."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self.examples = view.examples()
        self._races: OrderedDict[str, Raced] = OrderedDict()
        with gr.Column(elem_id="sc-race"):
            self._build()

    def _build(self) -> None:
        plain = {"js_on_load": None, "apply_default_css": False}
        gr.HTML(view.INTRO, **plain)
        self.prompt = gr.Textbox(
            label="Prompt", placeholder="What every lane answers", lines=2, max_lines=8, elem_id="sc-race-prompt",
            html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
        )  # fmt: skip
        self.chips = gr.HTML(
            view.example_buttons(self.examples),
            js_on_load=PRESSED,
            apply_default_css=False,
            elem_id="sc-race-chips",
        )
        self.lanes = LaneControls(self.desk)
        with gr.Row(elem_id="sc-race-run", equal_height=True):
            self.most = gr.Slider(
                16, 1024, value=128, step=16, label="Tokens at most, each lane", elem_id="sc-race-most", min_width=200,
            )  # fmt: skip
            self.repeats = gr.Slider(
                1, MOST_REPEATS, value=1, step=1, label="Repeats of each lane", elem_id="sc-race-repeats", min_width=160,
            )  # fmt: skip
            self.go = gr.Button("Run", variant="primary", elem_id="sc-race-go", min_width=90, scale=0)
            self.halt = gr.Button(
                "Stop", interactive=False, elem_id="sc-race-stop", min_width=90, scale=0, variant="secondary"
            )
        self.status = gr.HTML(status_line("ready", "Ready"), elem_id="sc-race-status", **plain)
        self.shown = gr.Radio(
            [], label="Texts and replay of repeat", visible=False, elem_id="sc-race-shown", container=True
        )
        self.take = gr.Button(
            "Use lane C's γ and drafter in the sidebar", visible=False, size="sm", elem_id="sc-race-take"
        )
        self.board = gr.HTML(
            view.empty(), js_on_load=REPLAYED, apply_default_css=False, elem_id="sc-race-board"
        )

    def wire(self) -> None:
        """Binds the handlers."""
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        inputs = [self.prompt, self.most, self.repeats, self.controls.gamma, *self.lanes.all()]
        self.go.click(
            self.run, inputs=inputs, outputs=self._outputs(), concurrency_limit=None, trigger_mode="multiple", **quiet
        )  # fmt: skip
        self.halt.click(self.stop, queue=False, **quiet)
        self.chips.select(self.pressed, outputs=[self.prompt], queue=False, **quiet)
        self.shown.input(
            self.show, inputs=[self.shown], outputs=[self.board, self.status], queue=False, **quiet
        )
        sidebar = self.controls
        self.take.click(
            self.taken, outputs=[sidebar.on, sidebar.gamma, sidebar.drafter, sidebar.adaptive, self.take, self.status], queue=False, **quiet
        )  # fmt: skip
        self.lanes.wire(self.controls)

    def _outputs(self) -> list[Component]:
        return [self.status, self.board, self.go, self.halt, self.shown, self.take]

    # -- handlers ---------------------------------------------------------------------------------

    def run(
        self, request: gr.Request, prompt: str, most: object, repeats: object, gamma: object, *lanes: object
    ) -> Iterator[Updates]:
        """Run: checks what was asked for, submits it and follows it to the end."""
        session = self.desk.sessions.of(request.session_hash)
        prompt = well_formed(prompt or "")
        try:
            if is_blank(prompt):
                raise Unfit("Write a prompt first, or press an example.")
            now, pair = session.live.get(), self.desk.worker.pair
            chosen = self.lanes.read(
                now, gamma, most, lanes, pair.drafters if pair is not None else (), pair is not None
            )
        except Unfit as problem:
            yield {self.status: status_line("hint", str(problem))}
            return
        times = max(1, min(MOST_REPEATS, int(float(str(repeats or 1)))))
        system, stops = session.system, self.desk.options.stop_strings

        def work(pair: Pair, cancelled: Cancelled, put: Put) -> object:
            asked = prompt_of(pair, prompt, system, chosen[0].settings.max_new_tokens)
            ends = (*stops, *asked.stop_strings)
            found = race(pair, asked.ids, fitted(chosen, pair), times, cancelled, put, ends)
            return Raced(found, prompt, system, pair.number)

        board = Board(tuple(chosen), times)
        yield from conduct(
            self.desk, session, NAME, Task(work, "Racing"),
            opening=lambda: self._opening(board),
            underway=lambda batch: self._news(board, batch),
            closing=lambda last: self._closing(last, request.session_hash or ""),
            refused={self.status: status_line("hint", "One race at a time: wait for this one, or stop it.")},
        )  # fmt: skip

    def _opening(self, board: Board) -> Updates:
        return {
            self.status: status_line("reading", "Starting"),
            self.board: board.html(),
            self.go: gr.update(interactive=False),
            self.halt: gr.update(interactive=True),
            self.shown: gr.update(visible=False),
            self.take: gr.update(visible=False),
        }

    def _news(self, board: Board, batch: list[Event]) -> Updates:
        found = news(batch)
        for value in found:
            board.take(value)
        waits = ahead(batch)
        if board.now is None and not board.comparing:
            return {self.status: gr.skip() if waits is None else waiting(self.desk, waits, "race")}
        return {self.status: status_line("writing", board.status()), self.board: board.html()}

    def _closing(self, last: Ended | None, tab: str) -> Updates:
        updates: Updates = {self.go: gr.update(interactive=True), self.halt: gr.update(interactive=False)}
        found = last.value if last is not None else None
        if isinstance(found, Raced):
            self._keep(tab, found)
            run = found.race
            # A repeat that has every lane, if there is one: replayed alone, half of a repeat would mislead.
            whole = [n for n in range(run.repeats) if len(run.heat(n)) == len(run.lanes)]
            updates[self.board] = found.board(whole[0] if whole else 0)
            updates[self.status] = _over(run)
            updates[self.take] = gr.update(visible=_own(run) is not None)
            if len(whole) > 1:
                updates[self.shown] = gr.update(
                    choices=[(str(n + 1), n) for n in whole], value=whole[0], visible=True
                )
        elif last is not None and last.problem:
            updates[self.board] = sentence("The race could not be run.", last.problem)
            updates[self.status] = status_line("failed", "The race could not be run. Ready for the next.")
        else:
            updates[self.board] = view.empty()
            updates[self.status] = status_line("ready", "Stopped before the race began.")
        return updates

    def _keep(self, tab: str, found: Raced) -> None:
        self._races[tab] = found
        self._races.move_to_end(tab)
        while len(self._races) > KEPT:
            self._races.popitem(last=False)

    def stop(self, request: gr.Request) -> None:
        """Ends the race within a round; what had finished is then shown."""
        stop(self.desk.sessions.of(request.session_hash), NAME)

    def pressed(self, event: gr.EventData) -> str:
        """An example goes into the box; nothing is run yet."""
        n = int(event.n)
        return self.examples[n].text if 0 <= n < len(self.examples) else ""

    def taken(self, request: gr.Request) -> Updates:
        """Lane C's γ and drafter become those of the sidebar, and so of the chat; its change events do the rest."""
        kept = self._races.get(request.session_hash or "")
        own = _own(kept.race) if kept is not None else None
        if kept is None or own is None:
            return {self.status: status_line("hint", NO_LONGER)}
        if not is_loaded(self.desk, kept.pair):
            return {self.status: status_line("hint", OTHER_PAIR), self.take: gr.update(visible=False)}
        return {
            self.controls.on: True,
            self.controls.gamma: own.gamma,
            self.controls.drafter: own.drafter,
            self.controls.adaptive: own.adaptive,
            self.take: gr.update(visible=False),
            self.status: status_line("ready", "The sidebar now has lane C's γ and drafter."),
        }

    def show(self, repeat: object, request: gr.Request) -> Updates:
        """Texts and replay of another repeat."""
        kept = self._races.get(request.session_hash or "")
        if kept is None or not isinstance(repeat, int) or not 0 <= repeat < kept.race.repeats:
            return {self.status: status_line("hint", NO_LONGER)}
        return {self.board: kept.board(repeat)}


def _own(found: Race) -> Settings | None:
    """Lane C's settings, where the sidebar can have them."""
    if len(found.lanes) < 3 or not found.of(2):
        return None
    settings = found.lanes[2].settings
    return settings if settings.draft_sampling is None else None


def _over(found: Race) -> str:
    if found.problem:
        return status_line("failed", "The race failed. Ready for the next.")
    if found.cancelled:
        return status_line("ready", "Stopped. What had finished is kept." if found.runs else "Stopped.")
    return status_line("ready", "Finished. The replay runs at the speed of the lanes.")
