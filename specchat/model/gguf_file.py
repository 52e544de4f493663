"""What a GGUF file says about itself, read from its header in milliseconds: sizes, types, what cannot be carried over."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata

from specchat.model.errors import BadCheckpoint, UnsupportedModel

_ARRAYS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
_PLAIN = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}  # ggml's numbers for unquantised tensors


@dataclass(frozen=True)
class GgufSummary:
    """A sound GGUF file. `metadata` holds its key-value fields, token and merge lists included."""

    path: Path
    architecture: str
    metadata: dict[str, object]
    header: GgufHeader

    @property
    def elements(self) -> int:
        """Number of weights (rotary tables, which are not weights, left out)."""
        return sum(prod(t.shape) for t in self.header.tensors if not t.name.startswith("rope_"))

    def number(self, key: str, otherwise: float) -> float:
        """A numeric field of the architecture's own section."""
        value = self.metadata.get(f"{self.architecture}.{key}", otherwise)
        return float(value) if isinstance(value, (int, float)) else otherwise

    @property
    def matrix_dtype(self) -> torch.dtype:
        """The type that keeps the file's precision: its own for plain files, float16 for quantised blocks.

        Rounding a dequantised weight to float16 moves it by at most 1/2048 of itself, far less than the
        quantisation step it came from.
        """
        kinds = {tensor.ggml_type for tensor in self.header.tensors if len(tensor.shape) > 1}
        plain = [_PLAIN[kind] for kind in kinds if kind in _PLAIN]
        if len(plain) < len(kinds):
            return torch.float16
        return plain[0] if len(plain) == 1 else torch.float32


def inspect_gguf(path: Path) -> GgufSummary:
    """Read and check the header against the file's length.

    Raises BadCheckpoint (not a GGUF, cut off, damaged) or UnsupportedModel (split file, unknown tensor type).
    """
    try:
        metadata, _ = read_gguf_metadata(str(path), _ARRAYS)
    except FileNotFoundError:
        raise BadCheckpoint(f"{path} does not exist; check the path.") from None
    except (OSError, ValueError, struct.error, IndexError, OverflowError, MemoryError) as error:
        raise BadCheckpoint(f"{path} is not a whole GGUF file ({error}); fetch it again.") from error
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedModel(
            f"{path} is one of {parts} parts; join them first (llama.cpp: gguf-split --merge) or use the model's "
            "Hugging Face folder."
        )
    try:
        header = GgufHeader.from_file(str(path))
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise BadCheckpoint(f"{path} is not a whole GGUF file ({error}); fetch it again.") from error
    except ValueError as error:
        raise UnsupportedModel(f"{path} cannot be read here: {error}") from error
    if not header.tensors:
        raise BadCheckpoint(f"{path} holds no tensors; it is not a model file.")
    end = header.data_start + max(tensor.offset + tensor.nbytes for tensor in header.tensors)
    length = path.stat().st_size
    if length < end:
        raise BadCheckpoint(
            f"{path} is {end - length:,} bytes short: its download was cut off; fetch it again."
        )
    return GgufSummary(path, header.architecture, metadata, header)


def llama3_rotary(summary: GgufSummary) -> dict[str, object] | None:
    """The rotary scaling a Llama-3 file carries, as transformers names it; None when positions are not scaled.

    The library's reader drops that table (rope_freqs, one divisor per rotary pair), which ruins long texts
    without a word. The published constants are put to the test: a table they do not reproduce is refused.
    """
    names = [tensor.name for tensor in summary.header.tensors if tensor.name.startswith("rope_")]
    stated = summary.metadata.get(f"{summary.architecture}.rope.scaling.type", "none")
    if not names and stated == "none":
        return None
    refusal = UnsupportedModel(
        f"{summary.path} stretches its positions in a way ({stated if stated != 'none' else ', '.join(names)}) that "
        "does not survive conversion; use the model's Hugging Face folder instead."
    )
    if names != ["rope_freqs.weight"] or summary.architecture != "llama" or stated != "none":
        raise refusal
    import gguf

    table = next(t for t in gguf.GGUFReader(str(summary.path)).tensors if t.name == "rope_freqs.weight")
    divisors = torch.tensor(table.data).float().flatten()
    theta = summary.number("rope.freq_base", 10000.0)
    head_dim = summary.number("rope.dimension_count", 2.0 * divisors.numel())
    factor, low, high, original = float(divisors.max()), 1.0, 4.0, 8192
    turns = original / (2 * torch.pi * theta ** (torch.arange(0, head_dim, 2) / head_dim))
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    if divisors.shape != turns.shape or not torch.allclose(
        1 / ((1 - smooth) / factor + smooth), divisors, rtol=1e-3
    ):
        raise refusal
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
