"""How much memory is free, and how much a model would take: from its configuration alone, without its weights."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path

import psutil
import torch
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig

_CGROUP = Path("/sys/fs/cgroup")


def gigabytes(count: float) -> str:
    """Bytes for people: 269,130,112 → '0.27 GB' (10^9 bytes)."""
    return f"{count / 1e9:,.2f} GB" if count < 1e10 else f"{count / 1e9:,.1f} GB"


def free_memory(device: torch.device) -> int:
    """Bytes free on the device: VRAM on CUDA; elsewhere RAM, respecting a container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # file pages that are not in use are given back before anything fails
        return min(free, limit - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return free


def give_back() -> None:
    """Returns what loading left behind to the system: the C library keeps freed float32 copies of weights otherwise.

    Measured on the built-in pair: 1.63 GB before, 1.17 GB after. Nothing happens where there is no glibc.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def count_weights(config: PretrainedConfig) -> int:
    """Number of weights of the model this configuration describes, a tied head counted once."""
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.tie_weights()
    return sum(weight.numel() for weight in model.parameters())


def cache_bytes(config: PretrainedConfig, context: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values for `context` positions, every attention layer holding all of them."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", None) or 0
    groups = getattr(text, "num_key_value_heads", None) or heads
    width = getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else 0)
    layers = sum(hasattr(layer, "keys") for layer in DynamicCache(config=config).layers)
    return 2 * layers * groups * width * context * dtype.itemsize
