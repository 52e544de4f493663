"""The Race tab: one prompt in two or three lanes on the loaded pair, replayed side by side."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import gradio as gr
from gradio.components import Component

from specchat.chat.conversation import is_blank, well_formed
from specchat.decode.settings import Settings
from specchat.lab.measure import prompt_ids
from specchat.lab.race import MOST_REPEATS, Cancelled, Put, Race, race
from specchat.ui import race_view as view
from specchat.ui.desk import Desk, status_line
from specchat.ui.race_lanes import LaneControls, Unfit, fitted
from specchat.ui.race_result import result
from specchat.ui.race_view import Board
from specchat.ui.sidebar import Controls
from specchat.ui.tab import ahead, ended, follow, news, stop
from specchat.worker import Ended, Task

if TYPE_CHECKING:
    from specchat.pair import Pair

log = logging.getLogger(__name__)

Updates = dict[Component, object]

NAME = "race"
"""What the session's task is called."""

KEPT = 40
"""Races remembered, of all tabs together, to show another repeat of; the page itself keeps what it shows."""

PRESSED = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-act]');
  if (button) trigger('select', {n: Number(button.dataset.n)});
});
"""

REPLAYED = "if (window.specchatRace) window.specchatRace(element);"
"""Hands the board to the page's script (assets/race.js)."""


class RaceTab:
    """Components of the tab and their handlers. One object a page; the finished races are kept by page load."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self.examples = view.examples()
        self._races: OrderedDict[str, tuple[Race, str]] = OrderedDict()
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
            if NAME in session.tasks:
                raise Unfit("One race at a time: wait for this one, or stop it.")
            now, pair = session.live.get(), self.desk.worker.pair
            chosen = self.lanes.read(
                now, gamma, most, lanes, pair.drafters if pair is not None else (), pair is not None
            )
        except Unfit as problem:
            yield {self.status: status_line("hint", str(problem))}
            return
        times = max(1, min(MOST_REPEATS, int(float(str(repeats or 1)))))

        def work(pair: Pair, cancelled: Cancelled, put: Put) -> object:
            ids = prompt_ids(pair, prompt, session.system, chosen[0].settings.max_new_tokens)
            return race(pair, ids, fitted(chosen, pair), times, cancelled, put)

        board = Board(tuple(chosen), times)
        yield self._opening(board)
        last: Ended | None = None
        try:
            for batch in follow(self.desk, session, NAME, Task(work, "Racing")):
                last = ended(batch)
                if last is None:
                    yield self._news(board, batch)
        except Exception as problem:
            log.exception("showing a race failed")
            last = Ended(
                problem=f"The page could not show it ({type(problem).__name__}); the terminal has the details."
            )
        yield self._closing(last, prompt, request.session_hash or "")

    def _opening(self, board: Board) -> Updates:
        return {
            self.status: status_line("reading", "Starting"),
            self.board: board.html(),
            self.go: gr.update(interactive=False),
            self.halt: gr.update(interactive=True),
            self.shown: gr.update(visible=False),
            self.take: gr.update(visible=False),
        }

    def _news(self, board: Board, batch: list) -> Updates:  # type: ignore[type-arg]
        found = news(batch)
        for value in found:
            board.take(value)
        waits = ahead(batch)
        if board.now is None and not board.comparing:
            return {self.status: self._waiting(waits)} if waits is not None else {self.status: gr.skip()}
        return {self.status: status_line("writing", board.status()), self.board: board.html()}

    def _waiting(self, waits: int) -> str:
        now = self.desk.worker.status()
        if now.state == "loading":
            return status_line("loading", f"Loading: {now.message.rstrip('.')}. The race comes next.")
        before = "a reply or another measurement is" if waits == 1 else f"{waits} replies or measurements are"
        return status_line(
            "queued", f"Waiting: {before} finished first, so that nothing disturbs the race's times."
        )

    def _closing(self, last: Ended | None, prompt: str, tab: str) -> Updates:
        updates: Updates = {self.go: gr.update(interactive=True), self.halt: gr.update(interactive=False)}
        found = last.value if last is not None else None
        if isinstance(found, Race):
            self._keep(tab, found, prompt)
            # A repeat that has every lane, if there is one: replayed alone, half of a repeat would mislead.
            whole = [n for n in range(found.repeats) if len(found.heat(n)) == len(found.lanes)]
            updates[self.board] = result(found, prompt, whole[0] if whole else 0)
            updates[self.status] = _over(found)
            updates[self.take] = gr.update(visible=_own(found) is not None)
            if len(whole) > 1:
                updates[self.shown] = gr.update(
                    choices=[(str(n + 1), n) for n in whole], value=whole[0], visible=True
                )
        elif last is not None and last.problem:
            updates[self.board] = view.sentence("The race could not be run.", last.problem)
            updates[self.status] = status_line("failed", "The race could not be run. Ready for the next.")
        else:
            updates[self.board] = view.empty()
            updates[self.status] = status_line("ready", "Stopped before the race began.")
        return updates

    def _keep(self, tab: str, found: Race, prompt: str) -> None:
        self._races[tab] = (found, prompt)
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
        own = _own(kept[0]) if kept is not None else None
        if own is None:
            return {self.status: status_line("hint", "That race is no longer kept: run it again.")}
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
        if kept is None or not isinstance(repeat, int) or not 0 <= repeat < kept[0].repeats:
            return {self.status: status_line("hint", "That race is no longer kept: run it again.")}
        return {self.board: result(*kept, repeat)}


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
