"""The formula by itself: four sliders, three figures and the curve. Nothing here is measured."""

from __future__ import annotations

import gradio as gr
from gradio.components import Component

from specchat.ui import tune_view

QUIET = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

START = (0.7, 5, 0.1, 1.0)
"""α, γ, c, v."""

MOST_C, LEAST_V, MOST_V = 1.0, 0.5, 4.0


class TuneCalculator:
    """Built inside the Tune tab."""

    def __init__(self) -> None:
        alpha, gamma, c, v = START
        with (
            gr.Accordion("Calculator: the formula alone", open=False, elem_id="sc-tune-formula"),
            gr.Row(elem_id="sc-tune-calculator", equal_height=False),
        ):
            with gr.Column(min_width=260):
                self.sliders = [
                    gr.Slider(0, 1, alpha, step=0.01, label="α, a proposal is kept", elem_id="sc-tune-alpha"),
                    gr.Slider(0, 16, gamma, step=1, label="γ, proposals a round", elem_id="sc-tune-gamma"),
                    gr.Slider(0, MOST_C, c, step=0.01, label="c, a draft step / a plain step", elem_id="sc-tune-c"),
                    gr.Slider(
                        LEAST_V, MOST_V, v, step=0.01, label="v, judging γ + 1 rows / judging one", elem_id="sc-tune-v"
                    ),
                ]  # fmt: skip
                self.fill = gr.Button(
                    "Take the probe's values", size="sm", visible=False, elem_id="sc-tune-fill"
                )
            with gr.Column(min_width=320):
                self.figures = gr.HTML(
                    tune_view.calculator(*START), js_on_load=None, apply_default_css=False,
                    elem_id="sc-tune-figures",
                )  # fmt: skip
        self.probed = gr.State(None)
        """(α, γ, c, v) of the last prediction."""

    def wire(self) -> None:
        """Binds the handlers."""
        gr.on(
            [slider.change for slider in self.sliders], _calculate, inputs=self.sliders, outputs=[self.figures],
            trigger_mode="always_last", **QUIET,
        )  # fmt: skip
        self.fill.click(_fill, inputs=[self.probed], outputs=self.sliders, **QUIET)

    def offer(self, alpha: float, gamma: int, c: float, v: float) -> dict[Component, object]:
        """A prediction's values may be taken over."""
        return {self.probed: (alpha, gamma, c, v), self.fill: gr.update(visible=True)}


def _calculate(alpha: object, gamma: object, c: object, v: object) -> str:
    try:
        return tune_view.calculator(float(str(alpha)), int(float(str(gamma))), float(str(c)), float(str(v)))
    except (ValueError, OverflowError):
        return tune_view.told("Each of the four must be a number.")


def _fill(probed: tuple[float, int, float, float] | None) -> list[object]:
    if probed is None:
        return [gr.skip()] * 4
    alpha, gamma, c, v = probed
    return [
        round(alpha, 2), int(gamma), min(round(c, 2), MOST_C), min(max(round(v, 2), LEAST_V), MOST_V),
    ]  # fmt: skip
