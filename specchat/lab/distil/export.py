"""The finished head as two files: weights in half precision, and where they come from."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from torch import Tensor

from specchat.lab.distil.network import HeadNet
from specchat.model.compact import CompactDecoder
from specchat.model.head_file import save_head
from specchat.model.store import sha256_of


def export(
    path: Path,
    net: HeadNet,
    subset: Tensor,
    target: CompactDecoder,
    target_name: str,
    provenance: Mapping[str, object],
) -> Path:
    """Writes `path` (safetensors) and, beside it, `.json`: how it was made, its size and its checksum.

    provenance: what the run knows of itself (command, seed, tokens, loss, held-out acceptance by position).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    save_head(path, net.shape, weights, subset, target.weights.table.cpu(), target_name)
    about = {
        "file": path.name,
        "sha256": sha256_of(path),
        "bytes": path.stat().st_size,
        "kind": "head over the target's last hidden state, one decoder layer",
        "target": target_name,
        "weights": sum(weight.numel() for weight in weights.values()),
        "vocabulary": len(subset),
        "versions": versions(),
        **provenance,
    }
    path.with_suffix(".json").write_text(
        json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return path


def versions() -> dict[str, str]:
    """What it was made with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
