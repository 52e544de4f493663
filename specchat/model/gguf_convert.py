"""GGUF → a Hugging Face folder with safetensors, once per file; later starts load that folder in seconds.

The library's own GGUF path expands every weight to float32 and takes half a minute even for a small model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from specchat.model.errors import BadCheckpoint, NotEnoughMemory, UnsupportedModel
from specchat.model.gguf_file import GgufSummary, inspect_gguf, llama3_rotary
from specchat.model.gguf_tokenizer import gguf_tokenizer
from specchat.model.memory import free_memory, gigabytes
from specchat.model.store import Progress, build_once, cache_root, silent

_TIED_TWICE = ("falcon", "bloom")  # their files repeat the tied head
_LARGEST_HALF = 65504.0


def ensure_gguf(path: Path, cache_dir: Path | str | None = None, progress: Progress = silent) -> Path:
    """The converted folder of this GGUF file, converting it first if this file has not been seen before.

    The key is the file's place, size and modification time, so an exchanged file is converted anew.
    Raises BadCheckpoint, UnsupportedModel, NotEnoughMemory or FetchFailed (full disk), each a sentence.
    """
    summary = inspect_gguf(path)
    folder = gguf_folder(path, cache_dir)
    return build_once(folder, lambda work: convert(summary, work, progress), progress)


def gguf_folder(path: Path, cache_dir: Path | str | None = None) -> Path:
    """Where the converted folder of this file lies once it has been made."""
    status = path.stat()
    key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    return cache_root(cache_dir) / "gguf" / f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def convert(summary: GgufSummary, out: Path, progress: Progress = silent) -> None:
    """Write model, configuration and tokenizer of a GGUF file into the empty folder `out`.

    Matrices are stored in `summary.matrix_dtype`, vectors (norms, biases) in float32.
    """
    tokenizer = gguf_tokenizer(summary)
    need = 4 * summary.elements
    free = free_memory(torch.device("cpu"))
    progress(
        f"Converting {summary.path.name} once: {summary.elements / 1e6:,.0f} million weights, "
        f"{gigabytes(need)} of memory while it lasts (4 bytes a weight)."
    )
    if need > free:
        raise NotEnoughMemory(
            f"Converting {summary.path.name} needs {gigabytes(need)} of memory and {gigabytes(free)} are free; close other "
            "programs or use the model's Hugging Face folder."
        )
    model = _expanded(summary)
    for weight in model.parameters():
        if weight.dim() > 1 and (
            summary.matrix_dtype != torch.float16 or weight.abs().max() <= _LARGEST_HALF
        ):
            weight.data = weight.data.to(summary.matrix_dtype)
    model.config.dtype = summary.matrix_dtype
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _expanded(summary: GgufSummary) -> PreTrainedModel:
    """The model in float32, after checking that nothing of the file was lost on the way."""
    # gpt-oss is the one architecture whose scaling the library does carry over
    rotary = None if summary.architecture in ("gpt-oss", "gpt_oss") else llama3_rotary(summary)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            str(summary.path.parent),
            gguf_file=summary.path.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            trust_remote_code=False,
        )
    except (
        ValueError,
        KeyError,
        NotImplementedError,
        ImportError,
        RuntimeError,
        TypeError,
        AttributeError,
    ) as error:
        raise UnsupportedModel(
            f"{summary.path.name} (architecture '{summary.architecture}') cannot be converted here ({error}); "
            "use the model's Hugging Face folder instead."
        ) from error
    missing = sorted(info["missing_keys"])
    held = sum(weight.numel() for weight in model.parameters())
    if missing or (held != summary.elements and summary.architecture not in _TIED_TWICE):
        raise BadCheckpoint(
            f"{summary.path.name} holds {summary.elements:,} weights where its architecture '{summary.architecture}' has "
            f"{held:,}{f' (missing: {missing[0]})' if missing else ''}; use the model's Hugging Face folder instead."
        )
    if rotary is not None:
        model.config.rope_parameters = rotary
    return model
