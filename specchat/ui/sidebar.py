"""The settings sidebar: controls, and what they mean to the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gradio as gr
from gradio.components import Component

from specchat.decode.engine import MAX_GAMMA, Settings
from specchat.decode.sampling import Sampling

DRAFTERS: Mapping[str, str] = {
    "chain": "text seen before, then model",
    "model": "draft model",
    "ngram": "text seen before (n-grams)",
}
"""Names of the engine's drafters, in words. A drafter without an entry is shown by its name."""

MAX_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Controls:
    """The sidebar's components, in the order in which `read` takes their values."""

    on: gr.Checkbox
    gamma: gr.Slider
    drafter: gr.Dropdown
    temperature: gr.Slider
    top_k: gr.Slider
    top_p: gr.Slider
    min_p: gr.Slider
    repetition: gr.Slider
    presence: gr.Slider
    frequency: gr.Slider
    max_tokens: gr.Slider
    seed: gr.Textbox
    system: gr.Textbox

    def all(self) -> list[Component]:
        """Every control, in order."""
        return [getattr(self, name) for name in self.__dataclass_fields__]


def build(now: Settings, system: str) -> Controls:
    """The sidebar's content. Call it inside the sidebar."""
    sampling = now.sampling
    gr.HTML('<h2 class="sc-settings-head">Settings</h2><p class="sc-hint">In force from the next round on, also in '
            "a reply being written; for draft and target alike.</p>", js_on_load=None, apply_default_css=False)  # fmt: skip
    with gr.Group():
        on = gr.Checkbox(now.gamma > 0, label="Speculation", elem_id="sc-on")
        gamma = _slider("γ, proposals a round", 0, MAX_GAMMA, 1, now.gamma or 4, "sc-gamma")
        drafter = gr.Dropdown(
            drafter_choices(tuple(DRAFTERS)), value=now.drafter, label="Drafter", elem_id="sc-drafter"
        )
    with gr.Group():
        temperature = _slider("Temperature", 0, 2, 0.05, sampling.temperature, "sc-temperature")
        top_k = _slider("Top-k, 0 = off", 0, 200, 1, sampling.top_k, "sc-top-k")
        top_p = _slider("Top-p, 1 = off", 0, 1, 0.01, sampling.top_p, "sc-top-p")
        min_p = _slider("Min-p, 0 = off", 0, 1, 0.01, sampling.min_p, "sc-min-p")
    with gr.Accordion("Penalties", open=False):
        repetition = _slider("Repetition, 1 = off", 1, 2, 0.01, sampling.repetition_penalty, "sc-repetition")
        presence = _slider("Presence, 0 = off", -2, 2, 0.05, sampling.presence_penalty, "sc-presence")
        frequency = _slider("Frequency, 0 = off", -2, 2, 0.05, sampling.frequency_penalty, "sc-frequency")
    with gr.Group():
        max_tokens = _slider("Max tokens", 1, MAX_TOKENS, 1, now.max_new_tokens, "sc-max-tokens")
        seed = gr.Textbox(
            "" if sampling.seed is None else str(sampling.seed), label="Seed",
            placeholder="another each time", max_lines=1, elem_id="sc-seed",
        )  # fmt: skip
        prompt = gr.Textbox(
            system, label="System prompt, from the next message on", lines=2, max_lines=8,
            placeholder="The model's own, if it has one", elem_id="sc-system",
        )  # fmt: skip
    return Controls(
        on,
        gamma,
        drafter,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition,
        presence,
        frequency,
        max_tokens,
        seed,
        prompt,
    )


def _slider(label: str, low: float, high: float, step: float, value: float, elem_id: str) -> gr.Slider:
    return gr.Slider(low, high, value=value, step=step, label=label, elem_id=elem_id, buttons=["reset"])


def drafter_choices(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names as the dropdown shows them."""
    return [(DRAFTERS.get(name, name), name) for name in names]


def read(values: Sequence[object]) -> tuple[Settings, str]:
    """The controls' values → settings and system prompt. Anything odd falls back to the nearest allowed value."""
    (
        on,
        gamma,
        drafter,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition,
        presence,
        frequency,
        most,
        seed,
        system,
    ) = values
    sampling = Sampling(
        temperature=_number(temperature, 0, 2, 0.6),
        top_k=int(_number(top_k, 0, 200, 20)),
        top_p=_number(top_p, 0, 1, 1),
        min_p=_number(min_p, 0, 1, 0),
        repetition_penalty=_number(repetition, 1, 2, 1),
        presence_penalty=_number(presence, -2, 2, 0),
        frequency_penalty=_number(frequency, -2, 2, 0),
        seed=_seed(seed),
    )
    rounds = int(_number(gamma, 0, MAX_GAMMA, 4)) if on else 0
    settings = Settings(rounds, sampling, str(drafter or ""), int(_number(most, 1, MAX_TOKENS, 512)))
    return settings, str(system or "")


def _number(value: object, low: float, high: float, otherwise: float) -> float:
    try:
        number = float(str(value))
    except ValueError:
        return otherwise
    return min(max(number, low), high) if math.isfinite(number) else otherwise


def _seed(value: object) -> int | None:
    """A whole number of at most 63 bits; anything else means another seed each time."""
    text = str(value if value is not None else "").strip()
    return int(text) % 2**63 if text.isdecimal() and text.isascii() and len(text) < 30 else None
