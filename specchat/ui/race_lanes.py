"""How the lanes of a race are set up: B follows the sidebar, C has settings of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import gradio as gr
from gradio.components import Component

from specchat.decode.settings import MAX_GAMMA, Settings
from specchat.lab.race import Lane, plain
from specchat.ui import race_view as view
from specchat.ui import sidebar
from specchat.ui.desk import Desk
from specchat.ui.race_words import lane_line
from specchat.ui.sidebar import DRAFTERS, Controls, Span
from specchat.ui.tab import fitting

if TYPE_CHECKING:
    from specchat.pair import Pair

GAMMA, TEMPERATURE, TOP_K = Span(1, MAX_GAMMA, 1), Span(0, 2, 0.05), Span(0, 200, 1)
MOST_TOKENS = Span(1, 4096, 1)


NOTHING_TO_RACE = (
    "This target cannot take back rejected tokens, so there is nothing to race against plain decoding."
)


class Unfit(ValueError):
    """A set-up that cannot be raced; its text says why and what to do."""


class LaneControls:
    """Cards of the lanes, and the settings of lane C below them."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        with gr.Row(elem_id="sc-race-setup", equal_height=True):
            gr.HTML(view.LANE_A, js_on_load=None, apply_default_css=False)
            self.card_b = gr.HTML(
                view.lane_b(line_b(desk.settings)), js_on_load=None, apply_default_css=False, elem_id="sc-race-b"
            )  # fmt: skip
            with gr.Column(elem_id="sc-race-c", elem_classes="sc-race-card", min_width=200):
                self.third = gr.Checkbox(label="Lane C", elem_id="sc-race-third", container=False)
                gr.HTML(
                    "<p>Speculation on, with settings of its own.</p>",
                    js_on_load=None,
                    apply_default_css=False,
                )
        with gr.Row(visible=False, elem_id="sc-race-own", equal_height=False) as self.own:
            self._build_own()

    def _build_own(self) -> None:
        drafter = self.desk.settings.drafter
        self.gamma = _slider("Lane C: γ", GAMMA, 8, "sc-race-gamma")
        self.drafter = gr.Dropdown(
            sidebar.drafter_choices(tuple(dict.fromkeys([*DRAFTERS, drafter]))), value=drafter, label="Lane C: drafter",
            elem_id="sc-race-drafter", min_width=200,
        )  # fmt: skip
        self.adaptive = gr.Checkbox(
            label="Adaptive γ", info="Each block goes on while one more proposal pays, up to the γ set here.",
            elem_id="sc-race-adaptive", min_width=200,
        )  # fmt: skip
        self.apart = gr.Checkbox(
            label="Draft samples otherwise", info="Misaligned on purpose: costs acceptance, not the text's law.",
            elem_id="sc-race-apart", min_width=200,
        )  # fmt: skip
        with gr.Row(visible=False, elem_id="sc-race-law") as self.law:
            self.temperature = _slider(
                "Lane C: the draft's temperature", TEMPERATURE, 1.5, "sc-race-temperature"
            )
            self.top_k = _slider("Lane C: the draft's top-k, 0 = off", TOP_K, 0, "sc-race-top-k")

    def all(self) -> list[Component]:
        """The controls, in the order in which `read` takes their values."""
        return [
            self.third, self.gamma, self.drafter, self.adaptive, self.apart, self.temperature, self.top_k,
        ]  # fmt: skip

    def wire(self, controls: Controls) -> None:
        """Lane B's card follows the sidebar; lane C's settings open and close."""
        quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        self.third.input(
            self._opened, inputs=[self.third, self.drafter], outputs=[self.own, self.drafter], **quiet
        )
        self.apart.input(
            lambda on: gr.update(visible=bool(on)), inputs=[self.apart], outputs=[self.law], **quiet
        )
        gr.on(
            [control.change for control in controls.all()], self._said, inputs=controls.all(),
            outputs=[self.card_b], trigger_mode="always_last", **quiet,
        )  # fmt: skip

    def _opened(self, on: bool, drafter: str) -> tuple[object, object]:
        """The drafters to choose from are those of the pair that is loaded now."""
        pair = self.desk.worker.pair
        if pair is None or not pair.drafters:
            return gr.update(visible=bool(on)), gr.skip()
        value = drafter if drafter in pair.drafters else pair.default_drafter
        choices = sidebar.drafter_choices(pair.drafters)
        return gr.update(visible=bool(on)), gr.update(choices=choices, value=value)

    def _said(self, *values: object) -> str:
        """Lane B's card for the sidebar's values: speculation is on there, whatever the switch says."""
        on = list(Controls.__dataclass_fields__).index("on")
        now, _ = sidebar.read((*values[:on], True, *values[on + 1 :]), self.desk.settings)
        return view.lane_b(line_b(now))

    def read(
        self, now: Settings, gamma: object, most: object, values: Sequence[object], drafters: Sequence[str], known: bool
    ) -> list[Lane]:  # fmt: skip
        """Lanes A, B and perhaps C. now: the sidebar's settings; gamma: its slider, for when it is switched off.

        known: the pair is loaded, and drafters are its. Raises Unfit with a sentence.
        """
        third, own_gamma, drafter, adaptive, apart, temperature, top_k = values
        if known and not drafters:
            raise Unfit(NOTHING_TO_RACE)
        base = replace(now, max_new_tokens=int(MOST_TOKENS.nearest(most, 128)))
        on = replace(base, gamma=base.gamma or int(Span(0, MAX_GAMMA, 1).nearest(gamma, 4)))
        if on.gamma == 0:
            raise Unfit("γ is 0 in the sidebar, so lane B would be the same as lane A. Set γ to 1 or more.")
        found = [Lane("A", plain(base)), Lane("B", on)]
        if third:
            law = replace(
                base.sampling, temperature=TEMPERATURE.nearest(temperature, 1.5), top_k=int(TOP_K.nearest(top_k, 0))
            )  # fmt: skip
            own = replace(
                on, gamma=int(GAMMA.nearest(own_gamma, 8)), drafter=str(drafter or ""), adaptive=bool(adaptive),
                draft_sampling=law if apart else None,
            )  # fmt: skip
            found.append(Lane("C", own))
        for lane in found[1:]:
            if known and lane.settings.drafter not in drafters:
                raise Unfit(f"Lane {lane.name}'s drafter is not there for this pair: choose another one.")
        if len(found) == 3 and found[1].settings == found[2].settings:
            raise Unfit("Lane C has the same settings as lane B: change its γ, drafter or draft sampling.")
        return found


def fitted(lanes: Sequence[Lane], pair: Pair) -> list[Lane]:
    """For a race that was asked for while the pair was still loading: a drafter it has not becomes its first.

    Raises Unfit when it cannot speculate at all.
    """
    if not pair.drafters:
        raise Unfit(NOTHING_TO_RACE)
    return [Lane(lane.name, fitting(lane.settings, pair)) for lane in lanes]


def line_b(settings: Settings) -> str:
    """Lane B's settings in words."""
    if not settings.gamma:
        return "γ is 0 there: set it to 1 or more"
    return lane_line(settings)


def _slider(label: str, span: Span, value: float, elem_id: str) -> gr.Slider:
    return gr.Slider(
        span.low,
        span.high,
        value=value,
        step=span.step,
        label=label,
        elem_id=elem_id,
        buttons=[],
        min_width=200,
    )
