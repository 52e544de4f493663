"""The settings sidebar: controls, and what they mean to the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import gradio as gr
from gradio.components import Component

from specchat.decode.engine import MAX_GAMMA, Settings
from specchat.decode.sampling import Sampling

DRAFTERS: Mapping[str, str] = {
    "chain": "chain (n-grams, then model)",
    "model": "draft model",
    "ngram": "n-grams of the text",
}
"""Names of the engine's drafters, in words. A drafter without an entry is shown by its name."""

DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Span:
    """What a slider covers, and its step."""

    low: float
    high: float
    step: float

    def around(self, value: float) -> Span:
        """Wide enough for the value too: Gradio refuses every change of a page whose slider lies outside its bounds."""
        return replace(self, low=min(self.low, value), high=max(self.high, value))

    def nearest(self, value: object, otherwise: float) -> float:
        """The number inside the span that is nearest to the value; `otherwise` when it is no number."""
        try:
            number = float(str(value))
        except ValueError:
            return otherwise
        return min(max(number, self.low), self.high) if math.isfinite(number) else otherwise


def spans(start: Settings) -> dict[str, Span]:
    """The one place where the sliders' bounds are defined: the usual ones, widened to what the program was started with."""
    usual: dict[str, tuple[Span, float]] = {
        "gamma": (Span(0, MAX_GAMMA, 1), start.gamma),
        "temperature": (Span(0, 2, 0.05), start.sampling.temperature),
        "top_k": (Span(0, 200, 1), start.sampling.top_k),
        "top_p": (Span(0, 1, 0.01), start.sampling.top_p),
        "min_p": (Span(0, 1, 0.01), start.sampling.min_p),
        "repetition": (Span(1, 2, 0.01), start.sampling.repetition_penalty),
        "presence": (Span(-2, 2, 0.05), start.sampling.presence_penalty),
        "frequency": (Span(-2, 2, 0.05), start.sampling.frequency_penalty),
        "max_tokens": (Span(1, 4096, 1), start.max_new_tokens),
        "confidence": (Span(0, 0.95, 0.05), start.confidence),
    }
    return {name: span.around(value) for name, (span, value) in usual.items()}


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
    adaptive: gr.Checkbox
    guard: gr.Checkbox
    confidence: gr.Slider

    def all(self) -> list[Component]:
        """Every control, in order."""
        return [getattr(self, name) for name in self.__dataclass_fields__]


def build(now: Settings, system: str) -> Controls:
    """The sidebar's content. Call it inside the sidebar."""
    sampling, wide = now.sampling, spans(now)
    gr.HTML('<h2 class="sc-settings-head">Settings</h2><p class="sc-hint">In force from the next round on, also in '
            "a reply being written; for draft and target alike.</p>", js_on_load=None, apply_default_css=False)  # fmt: skip
    with gr.Group():
        on = gr.Checkbox(now.gamma > 0, label="Speculation", elem_id="sc-on")
        gamma = _slider("γ, proposals a round", wide["gamma"], now.gamma or 4, "sc-gamma")
        drafter = gr.Dropdown(
            drafter_choices(tuple(dict.fromkeys([*DRAFTERS, now.drafter]))),
            value=now.drafter,
            label="Drafter",
            elem_id="sc-drafter",
        )
    with gr.Group():
        adaptive = gr.Checkbox(
            now.adaptive, label="Adaptive γ (up to the slider)", elem_id="sc-adaptive",
            info="A block goes on while one more proposal is expected to pay. Times decide: a seed no longer repeats the text.",
        )  # fmt: skip
        guard = gr.Checkbox(
            now.guard, label="Never slower than plain", elem_id="sc-guard",
            info="Speculation rests while it loses, and is tried again now and then. Times decide here too.",
        )  # fmt: skip
        confidence = _slider("Confidence stop, 0 = off", wide["confidence"], now.confidence, "sc-confidence")
    with gr.Group():
        temperature = _slider("Temperature", wide["temperature"], sampling.temperature, "sc-temperature")
        top_k = _slider("Top-k, 0 = off", wide["top_k"], sampling.top_k, "sc-top-k")
        top_p = _slider("Top-p, 1 = off", wide["top_p"], sampling.top_p, "sc-top-p")
        min_p = _slider("Min-p, 0 = off", wide["min_p"], sampling.min_p, "sc-min-p")
    with gr.Accordion("Penalties", open=False):
        repetition = _slider(
            "Repetition, 1 = off", wide["repetition"], sampling.repetition_penalty, "sc-repetition"
        )
        presence = _slider("Presence, 0 = off", wide["presence"], sampling.presence_penalty, "sc-presence")
        frequency = _slider(
            "Frequency, 0 = off", wide["frequency"], sampling.frequency_penalty, "sc-frequency"
        )
    with gr.Group():
        max_tokens = _slider("Max tokens", wide["max_tokens"], now.max_new_tokens, "sc-max-tokens")
        seed = gr.Textbox(
            "" if sampling.seed is None else str(sampling.seed), label="Seed",
            placeholder="another each time", max_lines=1, elem_id="sc-seed",
        )  # fmt: skip
        prompt = gr.Textbox(
            system, label="System prompt, from the next message on", lines=2, max_lines=8,
            placeholder="The model's own, if it has one", elem_id="sc-system",
        )  # fmt: skip
    return Controls(
        on, gamma, drafter, temperature, top_k, top_p, min_p, repetition, presence, frequency, max_tokens, seed, prompt,
        adaptive, guard, confidence,
    )  # fmt: skip


def _slider(label: str, span: Span, value: float, elem_id: str) -> gr.Slider:
    return gr.Slider(
        span.low, span.high, value=value, step=span.step, label=label, elem_id=elem_id, buttons=["reset"]
    )


def drafter_choices(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names as the dropdown shows them."""
    return [(DRAFTERS.get(name, name), name) for name in names]


def read(values: Sequence[object], start: Settings = DEFAULTS) -> tuple[Settings, str]:
    """The controls' values → settings and system prompt. Anything odd falls back to the nearest allowed value.

    start: what the sidebar was built with; its sliders go as far as these settings need. The last three values may
    be missing: then they are as at the start.
    """
    (
        on, gamma, drafter, temperature, top_k, top_p, min_p, repetition, presence, frequency, most, seed, system,
        *last,
    ) = values  # fmt: skip
    adaptive, guard, confidence = last or (start.adaptive, start.guard, start.confidence)
    wide = spans(start)
    sampling = Sampling(
        temperature=wide["temperature"].nearest(temperature, 0.6),
        top_k=int(wide["top_k"].nearest(top_k, 20)),
        top_p=wide["top_p"].nearest(top_p, 1),
        min_p=wide["min_p"].nearest(min_p, 0),
        repetition_penalty=wide["repetition"].nearest(repetition, 1),
        presence_penalty=wide["presence"].nearest(presence, 0),
        frequency_penalty=wide["frequency"].nearest(frequency, 0),
        seed=_seed(seed),
    )
    rounds = int(wide["gamma"].nearest(gamma, 4)) if on else 0
    now = Settings(
        rounds, sampling, str(drafter or ""), int(wide["max_tokens"].nearest(most, 512)),
        confidence=wide["confidence"].nearest(confidence, 0), adaptive=bool(adaptive), guard=bool(guard),
    )  # fmt: skip
    return now, str(system or "")


def _seed(value: object) -> int | None:
    """A whole number of at most 63 bits; anything else means another seed each time."""
    text = str(value if value is not None else "").strip()
    return int(text) % 2**63 if text.isdecimal() and text.isascii() and len(text) < 30 else None
