"""A draft head on disk: one safetensors file with what is not the target's, checked against the target on loading.

The file carries a few rows of the embedding of the target it was trained on. A head that meets another model is
refused by them: its guesses would be noise, and the reply slow for no visible reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specchat.model.checkpoint import check_safetensors
from specchat.model.compact import CompactDecoder
from specchat.model.errors import BadCheckpoint, PairMismatch
from specchat.model.head import HeadShape, StateHead

FORMAT = "specchat-head-1"
_PROBES = 16
"""Rows of the embedding that identify a target."""
_TOLERANCE = 0.02
"""Largest difference of a probe, in parts of its row's norm: more than half precision, less than any training."""


def save_head(
    path: Path, shape: HeadShape, tensors: Mapping[str, Tensor], subset: Tensor, table: Tensor, target: str
) -> None:
    """Writes a head in half precision. table: the target's embedding; target: its name, for messages."""
    places = torch.linspace(0, len(table) - 1, _PROBES).long()
    stored = {name: tensors[name].detach().half().contiguous() for name in shape.matrices()}
    stored |= {
        "subset": subset.to(torch.int32),
        "probe_ids": places.int(),
        "probe_rows": table[places].half(),
    }
    about = {"format": FORMAT, "target": target, "shape": json.dumps(dataclasses.asdict(shape))}
    save_file(stored, path, metadata={**about, "vocab": str(len(table))})


def load_head(path: Path, target: CompactDecoder, capacity: int | None = None) -> StateHead:
    """The head of this file, ready to run beside its target; raises as `read_head`."""
    shape, tensors = read_head(path, target)
    return StateHead(shape, tensors, tensors["subset"].long(), target, capacity)


def read_head(path: Path, target: CompactDecoder) -> tuple[HeadShape, dict[str, Tensor]]:
    """Its shape and its weights in half precision, by the names of `HeadShape.matrices`, checked against the target.

    Raises BadCheckpoint (missing, cut off, damaged, or no head at all) or PairMismatch (made for another target).
    """
    table = target.weights.table
    return _checked(
        path,
        (table.shape[0], table.shape[1]),
        min(target.vocab, target.weights.head_rows),
        lambda ids: table[ids.to(table.device)],
    )


def check_head(path: Path, size: tuple[int, int], vocab: int, look: Callable[[Tensor], Tensor]) -> None:
    """As `read_head`, without a target: its embedding's size [rows, width], its ids, and a way to see some rows."""
    _checked(path, size, vocab, look)


def _checked(
    path: Path, size: tuple[int, int], vocab: int, look: Callable[[Tensor], Tensor]
) -> tuple[HeadShape, dict[str, Tensor]]:
    about, tensors = _read(path)
    shape = _shape(path, about)
    wrong = [
        name for name, of in shape.matrices().items() if name not in tensors or tensors[name].shape != of
    ]
    if wrong or not {"subset", "probe_ids", "probe_rows"} <= tensors.keys():
        raise BadCheckpoint(
            f"{path} lacks parts of a draft head ({', '.join(wrong) or 'its ids'}); fetch it again."
        )
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise BadCheckpoint(f"{path} holds weights that are not numbers; fetch it again, or make it anew.")
    _demand_target(path, about, shape, tensors, size, vocab, look)
    return shape, tensors


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise BadCheckpoint(
            f"{path} is missing; fetch it again, or make one with: python -m specchat distil."
        )
    check_safetensors(path)
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{path} cannot be read ({error}); fetch it again.") from error


def _shape(path: Path, about: Mapping[str, str]) -> HeadShape:
    if about.get("format") != FORMAT:
        raise BadCheckpoint(
            f"{path} is not a draft head of this version ({FORMAT}); make one with: python -m specchat distil."
        )
    try:
        fields = json.loads(about["shape"])
        return HeadShape(**{**fields, "frequencies": tuple(fields["frequencies"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(
            f"{path} does not say what shape its head has ({error}); fetch it again."
        ) from error


def _demand_target(
    path: Path,
    about: Mapping[str, str],
    shape: HeadShape,
    tensors: Mapping[str, Tensor],
    size: tuple[int, int],
    vocab: int,
    look: Callable[[Tensor], Tensor],
) -> None:
    """PairMismatch unless the head was trained on this target."""
    made_for = f"{path.name} was made for {about.get('target', 'another model')}"
    if size[1] != shape.hidden:
        raise PairMismatch(
            f"{made_for}, whose states have {shape.hidden} numbers; this target's have {size[1]}. "
            "Choose another draft, or make one with: python -m specchat distil."
        )
    subset, places = tensors["subset"], tensors["probe_ids"].long()
    if not len(subset) or int(subset.max()) >= vocab or int(places.max()) >= size[0]:
        raise PairMismatch(
            f"{made_for}, whose vocabulary is not this target's ({vocab} tokens). Choose another draft."
        )
    expected = tensors["probe_rows"].float()
    found = look(places).float().cpu()
    if bool(((found - expected).norm(dim=-1) > _TOLERANCE * expected.norm(dim=-1) + 1e-6).any()):
        raise PairMismatch(
            f"{made_for}; this target has other weights, so the head would guess at random. "
            "Choose another draft, or make one with: python -m specchat distil."
        )
