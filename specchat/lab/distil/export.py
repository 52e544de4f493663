"""The finished draft: weights in half precision, and beside them where they come from."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

import torch
import transformers
from torch import Tensor

from specchat.lab.distil.layers import LayersNet
from specchat.lab.distil.network import HeadNet, Net
from specchat.lab.distil.short import shorten
from specchat.model.compact import CompactDecoder
from specchat.model.head_file import save_head
from specchat.model.provenance import about_file
from specchat.model.store import sha256_of

HEAD = "head over the target's last hidden state, one decoder layer"
LAYERS = "the target's first two decoder layers and its final norm, trained; embedding and output head are the target's"


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
    own = {"vocabulary": len(subset), **provenance}
    _write_about(about_file(path), path, path.name, HEAD, target_name, net, own)
    return path


def export_layers(
    out: Path, net: LayersNet, source: Path, target_name: str, provenance: Mapping[str, object]
) -> Path:
    """Writes the folder `out`, a checkpoint like `source`, and beside it `.json` as for a head.

    Whatever was at `out` is replaced at once, when the new folder is whole.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        work.chmod(0o755)
        shorten(source, work, dict(net.named_parameters()))
        if out.exists():
            shutil.rmtree(out)
        os.replace(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    file = out / "model.safetensors"
    _write_about(about_file(out), file, f"{out.name}/{file.name}", LAYERS, target_name, net, provenance)
    return out


def _write_about(
    path: Path, file: Path, name: str, kind: str, target: str, net: Net, provenance: Mapping[str, object]
) -> None:
    about = {
        "file": name,
        "sha256": sha256_of(file),
        "bytes": file.stat().st_size,
        "kind": kind,
        "target": target,
        "weights": sum(weight.numel() for _, weight in net.named_parameters()),
        "versions": versions(),
        **provenance,
    }
    path.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """What it was made with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
