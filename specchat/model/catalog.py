"""Pairs known to belong together, and the default that needs no hub.

The hub ids below were compiled from their makers' published model cards (one tokenizer per family); they are not
re-checked at start, and this program's tests, which run without a hub, never load them. Whether a pair really fits
is decided by `pairing` from the files themselves, for these as for any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specchat.model.linear import Precision

BUILTIN = "builtin"

HUB = "huggingface.co"

BUILTIN_HEAD = Path(__file__).parents[2] / "assets" / "draft-smollm2-135m.safetensors"
"""The draft trained for the built-in target."""

OWN_DRAFTS = ("shallow", "self", "ngram", "none")
"""Drafts that need no second model: the target's first layers, the target itself, its own text, nothing."""


@dataclass(frozen=True)
class Pair:
    """A target, a draft that shares its vocabulary, and why one would choose them. Sizes are weights, in billions."""

    key: str
    target: str
    draft: str
    target_size: float
    draft_size: float
    why: str


DEFAULT = Pair(
    key=BUILTIN,
    target=BUILTIN,
    draft=BUILTIN,
    target_size=0.135,
    draft_size=0.01,
    why="Needs no hub and no GPU: SmolLM2-135M-Instruct with the small draft trained for it.",
)

PAIRS: tuple[Pair, ...] = (
    DEFAULT,
    Pair(
        "smollm2-1.7b",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        1.71,
        0.135,
        "The largest pair that is still pleasant on a laptop's CPU; the draft is 13 times smaller.",
    ),
    Pair(
        "qwen2.5-7b",
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen2.5-0.5B-Instruct",
        7.62,
        0.494,
        "A strong general model for a 24 GB card; heads are padded differently, which is handled.",
    ),
    Pair(
        "qwen2.5-14b",
        "Qwen/Qwen2.5-14B-Instruct",
        "Qwen/Qwen2.5-0.5B-Instruct",
        14.8,
        0.494,
        "The same small draft pays more with a larger target; needs about 32 GB.",
    ),
    Pair(
        "qwen3-8b",
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-0.6B",
        8.19,
        0.596,
        "Newer, thinks aloud before it answers; long predictable passages suit speculation.",
    ),
    Pair(
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.2-1B-Instruct",
        8.03,
        1.24,
        "Both gated: accept the licence on the hub and log in first. One vocabulary across 3.1 and 3.2.",
    ),
    Pair(
        "gemma-2-9b",
        "google/gemma-2-9b-it",
        "google/gemma-2-2b-it",
        9.24,
        2.61,
        "Gated. Sliding windows in every other layer; the draft is large, so expect a modest gain.",
    ),
)


def find(key: str) -> Pair | None:
    """The pair of that key, or None."""
    return next((pair for pair in PAIRS if pair.key == key), None)


def billions(source: str) -> float | None:
    """Weights of a model that is in the catalogue, in billions; None for any other."""
    sizes = {pair.target: pair.target_size for pair in PAIRS} | {
        pair.draft: pair.draft_size for pair in PAIRS[1:]
    }
    return sizes.get(source)


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which models, where, how precise: what a person asks for at start. draft "" is the default for the target."""

    target: str = BUILTIN
    draft: str = ""
    device: str = "auto"
    precision: Precision = "auto"
    threads: int | None = None
    context: int | None = None
    cache_dir: str | None = None
    cuda_graphs: bool = False
    """Record the passes of both models and replay them (see `graphs`); refused elsewhere than on CUDA."""


Verdict = Literal["yes", "no", "note", "open"]
"""In order; stands in the way; works, but should be known; only loading will show."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is known of a pair before it is loaded: what it is about, how it stands, why in a sentence."""

    topic: str
    verdict: Verdict
    text: str
