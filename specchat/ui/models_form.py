"""The Models tab's fields: which two models, where, how precise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, get_args

import gradio as gr
import torch
from gradio.components import Component

from specchat.model.catalog import BUILTIN_HEAD, OWN_DRAFTS, PAIRS, Pair, PairOptions
from specchat.model.linear import Precision
from specchat.ui import models_view as view

if TYPE_CHECKING:
    from gradio.events import EventListenerCallable

TYPED = "typed"
KINDS: tuple[tuple[str, str], ...] = (
    ("The default for this target", ""),
    ("A second model, or a trained head", TYPED),
    ("The head trained for SmolLM2-135M-Instruct", str(BUILTIN_HEAD)),
    ("The target's first two layers, untrained", "shallow"),
    ("The target itself", "self"),
    ("N-grams of the text, no model", "ngram"),
    ("None: plain decoding", "none"),
)
PRECISIONS: tuple[str, ...] = get_args(Precision)
LEAST_CONTEXT = 16


@dataclass(frozen=True, slots=True)
class Form:
    """The fields; `all` gives them in the order in which `read` takes their values."""

    known: gr.Dropdown
    why: gr.HTML
    target: gr.Textbox
    kind: gr.Dropdown
    typed: gr.Textbox
    device: gr.Dropdown
    precision: gr.Dropdown
    context: gr.Textbox
    threads: gr.Textbox

    def all(self) -> list[Component]:
        """What makes up a choice."""
        return [self.target, self.kind, self.typed, self.device, self.precision, self.context, self.threads]

    def settled(self) -> list[EventListenerCallable]:
        """When a person has changed something: a choice at once, a text when it is left or Enter is pressed."""
        texts = [self.target, self.typed, self.context, self.threads]
        return [
            *(box.submit for box in texts),
            *(box.blur for box in texts),
            *(choice.input for choice in (self.kind, self.device, self.precision)),
        ]

    def touched(self) -> list[EventListenerCallable]:
        """When a person begins to change something."""
        fields = (
            self.known,
            self.target,
            self.kind,
            self.typed,
            self.device,
            self.precision,
            self.context,
            self.threads,
        )
        return [field.input for field in fields]

    def picked(self) -> list[Component]:
        """What `fill` sets."""
        return [self.target, self.kind, self.typed, self.why]

    def fill(self, pair: Pair) -> dict[Component, object]:
        """A pair of the catalogue."""
        draft = "" if pair is PAIRS[0] else pair.draft
        kind, typed = split(draft)
        return {
            self.target: pair.target,
            self.kind: kind,
            self.typed: gr.update(value=typed, visible=kind == TYPED),
            self.why: view.why(pair.key),
        }


def build(now: PairOptions) -> Form:
    """The fields, filled with what the program was started with. Call it where they are to stand."""
    kind, typed = split(now.draft)
    gr.HTML("<h2>Choose another</h2>", js_on_load=None, apply_default_css=False)
    key = view.known_key(now)
    known = gr.Dropdown(
        list(view.KNOWN), value=key or None, label="Pairs known to belong together", elem_id="sc-models-known"
    )
    why = gr.HTML(view.why(key), js_on_load=None, apply_default_css=False, elem_id="sc-models-why")
    target = gr.Textbox(
        now.target, label="Target: builtin, a folder, a GGUF file, or a hub id (owner/name)", max_lines=1,
        elem_id="sc-models-target",
    )  # fmt: skip
    draft = gr.Dropdown(list(KINDS), value=kind, label="Draft", elem_id="sc-models-kind")
    other = gr.Textbox(
        typed, label="Draft model: a folder, GGUF file, hub id, or the .safetensors file of a head", max_lines=1,
        visible=kind == TYPED, elem_id="sc-models-typed",
    )  # fmt: skip
    with gr.Row(elem_id="sc-models-where"):
        device = gr.Dropdown(
            devices(now.device), value=now.device, label="Device", min_width=120, elem_id="sc-models-device"
        )
        precision = gr.Dropdown(
            list(PRECISIONS),
            value=now.precision,
            label="Precision",
            min_width=120,
            elem_id="sc-models-precision",
        )
        context = gr.Textbox(
            _number(now.context), label="Context, tokens", placeholder="up to 8192", max_lines=1, min_width=120,
            elem_id="sc-models-context",
        )  # fmt: skip
        threads = gr.Textbox(
            _number(now.threads), label="CPU threads", placeholder="by measurement", max_lines=1, min_width=120,
            elem_id="sc-models-threads",
        )  # fmt: skip
    return Form(known, why, target, draft, other, device, precision, context, threads)


def split(draft: str) -> tuple[str, str]:
    """A draft as (kind, what is typed)."""
    return (draft, "") if draft in ("", *OWN_DRAFTS, str(BUILTIN_HEAD)) else (TYPED, draft)


def show_typed(kind: str) -> object:
    """The field for a second model, only where one is wanted."""
    return gr.update(visible=kind == TYPED)


def devices(asked: str) -> list[str]:
    """What this machine has, and what it was started with."""
    found = ["auto", "cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    found += ["mps"] if torch.backends.mps.is_available() else []
    return list(dict.fromkeys([*found, asked]))


def read(values: Sequence[object], start: PairOptions) -> PairOptions | str:
    """The fields as options, or a sentence that says which of them is wrong."""
    target, kind, typed, device, precision, context, threads = (str(value or "").strip() for value in values)
    if not target:
        return "Name a target: builtin, a folder, a GGUF file or a hub id."
    if kind == TYPED and not typed:
        return "Name the draft model, or choose another kind of draft."
    most = 4 * (os.cpu_count() or 1)
    length, many = _whole(context), _whole(threads)
    if length is not None and not LEAST_CONTEXT <= length <= 10**9:
        return f"The context is {context!r}; it must be a whole number of {LEAST_CONTEXT} tokens or more, or empty."
    if many is not None and not 1 <= many <= most:
        return f"The number of threads is {threads!r}; it must be a whole number from 1 to {most}, or empty."
    if precision not in get_args(Precision):
        return f"The precision {precision!r} is not offered."
    return replace(
        start,
        target=target,
        draft=typed if kind == TYPED else kind,
        device=device or "auto",
        precision=cast(Precision, precision),
        context=length,
        threads=many,
    )


def _whole(text: str) -> int | None:
    """None for nothing, 0 for what is no whole number."""
    if not text:
        return None
    digits = text.replace(",", "").replace(" ", "")
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 20 else 0


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
