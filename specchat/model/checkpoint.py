"""Is this Hugging Face folder whole, and may it be run? Decided from names, sizes and headers in milliseconds.

Reads no weights. Only safetensors weights are accepted (a pickle can run code while it loads) and only model
classes that ship with transformers (code inside a checkpoint is never run).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from specchat.model.errors import BadCheckpoint, UnsupportedModel

_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "spiece.model")
_MAX_HEADER = 100_000_000  # the limit safetensors itself sets, in bytes
_BITS = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "I8": 8,
    "U8": 8,
}


@dataclass(frozen=True)
class Checkpoint:
    """What a sound folder holds. `weight_bytes` is the size of the tensors as stored."""

    folder: Path
    config: dict[str, object]
    weight_files: tuple[Path, ...]
    weight_bytes: int


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file; BadCheckpoint names the file if it is missing, cut off or not an object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadCheckpoint(f"{path} is missing; fetch the model's files again.") from None
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path} cannot be read as JSON ({error}); fetch that file again.") from error
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{path} does not hold a JSON object; fetch that file again.")
    return data


def inspect_folder(folder: Path) -> Checkpoint:
    """Check a folder before anything is loaded from it.

    Raises BadCheckpoint (missing, truncated or corrupt files, each named) or UnsupportedModel (pickled weights,
    code of its own, a class this library does not know).
    """
    config = read_json(folder / "config.json")
    check_class(folder, config)
    files = _weight_files(folder)
    stored = sum(check_safetensors(path) for path in files)
    if not any((folder / name).exists() for name in _TOKENIZERS):
        raise BadCheckpoint(
            f"{folder} has no tokenizer ({', '.join(_TOKENIZERS[:3])}, ...); copy the model's own there."
        )
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            read_json(folder / name)
    return Checkpoint(folder, config, files, stored)


def check_class(folder: Path, config: dict[str, object]) -> None:
    """UnsupportedModel or BadCheckpoint unless the configuration names a causal model of the library's own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise BadCheckpoint(
            f"{folder / 'config.json'} names no model_type, so it is not a model this program can build."
        )
    if kind not in CONFIG_MAPPING_NAMES:
        if "auto_map" in config:
            raise UnsupportedModel(
                f"{folder} wants to run Python code of its own (auto_map in config.json, model_type '{kind}'); "
                "SpecChat never does that. Choose a model whose class ships with transformers."
            )
        raise UnsupportedModel(
            f"{folder} is of model_type '{kind}', which the installed transformers does not know; "
            "choose another model or a newer transformers."
        )
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UnsupportedModel(
            f"{folder} is a '{kind}' model, which does not generate text token by token; choose a causal language model."
        )


def _weight_files(folder: Path) -> tuple[Path, ...]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BadCheckpoint(f"{index} has no weight_map; fetch that file again.")
        names = sorted({str(name) for name in weight_map.values()})
        if any("/" in name or "\\" in name for name in names):
            raise BadCheckpoint(
                f"{index} points outside its folder; fetch the model from a source you trust."
            )
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise BadCheckpoint(
                f"{folder} lacks {len(missing)} of the {len(names)} weight files its index names "
                f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}); fetch them again."
            )
        return tuple(folder / name for name in names)
    if single.is_file():
        return (single,)
    pickles = sorted({path.name for pattern in _PICKLES for path in folder.glob(pattern)})
    if pickles:
        raise UnsupportedModel(
            f"{folder} has its weights only as {pickles[0]}; such files can run code while they load, so SpecChat reads "
            "safetensors and GGUF only. Choose a safetensors version of the model."
        )
    raise BadCheckpoint(
        f"{folder} has no weights: neither model.safetensors nor model.safetensors.index.json is there."
    )


def check_safetensors(path: Path) -> int:
    """Compare a safetensors header with the length of its file; returns the tensors' bytes.

    Reads the header only. BadCheckpoint says how many bytes are missing, or that the header is damaged.
    """
    length = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        header_length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= header_length <= _MAX_HEADER or 8 + header_length > length:
            raise BadCheckpoint(f"{path} is not a whole safetensors file ({length:,} bytes); fetch it again.")
        raw = file.read(header_length)
    try:
        header = {name: entry for name, entry in json.loads(raw).items() if name != "__metadata__"}
        ends = [_tensor_end(name, entry) for name, entry in header.items()]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadCheckpoint(f"{path} has a damaged header ({error}); fetch it again.") from error
    expected = 8 + header_length + max(ends, default=0)
    if length != expected:
        what = (
            f"{expected - length:,} bytes short"
            if length < expected
            else f"{length - expected:,} bytes too long"
        )
        raise BadCheckpoint(f"{path} is {what}: its download was cut off or mixed up; fetch it again.")
    return expected - 8 - header_length


def _tensor_end(name: str, entry: dict[str, object]) -> int:
    """Where a tensor's data ends, after checking that shape, type and extent agree."""
    extent, shape, kind = entry["data_offsets"], entry["shape"], str(entry["dtype"])
    if not isinstance(extent, list) or not isinstance(shape, list) or not 0 <= extent[0] <= extent[1]:
        raise ValueError(f"tensor {name} has impossible offsets")
    bits = _BITS.get(kind, 0)  # packed types of less than a byte are left to the library
    if bits and prod(shape) * bits != (extent[1] - extent[0]) * 8:
        raise ValueError(f"tensor {name} of shape {shape} does not fill bytes {extent[0]} to {extent[1]}")
    return int(extent[1])
