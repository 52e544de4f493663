"""The target's first blocks as a checkpoint folder of their own, which any program that loads the target loads.

Everything is taken over from the target's folder as it stands there: the configuration with fewer blocks, embedding,
blocks, norm and head in their stored types, tokenizer, generation settings.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specchat.model.checkpoint import inspect_folder
from specchat.model.errors import PairMismatch, UnsupportedModel

BLOCKS = 2
_BESIDE = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_LISTED = ("layer_types", "no_rope_layers")
"""Fields of a configuration with an entry for each block."""
_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def shorten(source: Path, out: Path, trained: Mapping[str, Tensor] | None = None) -> None:
    """Fills the empty folder `out` with the first blocks of the checkpoint `source`.

    trained: weights by their names in the file, which replace the target's. Raises UnsupportedModel for a target that
    has no more blocks than that, or stores its weights under other names.
    """
    config = inspect_folder(source).config
    demand_blocks(config)
    tensors = _first_tensors(source)
    if not tensors.keys() >= (trained or {}).keys():
        raise UnsupportedModel(f"{source} stores its weights under unusual names; a head can be made for it.")
    for name, weight in (trained or {}).items():
        tensors[name] = weight.detach().to(tensors[name].dtype).contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(_first_blocks(config), indent=2, ensure_ascii=False)
    (out / "config.json").write_text(text + "\n", encoding="utf-8")
    for name in _BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def read_short(folder: Path, source: Path) -> dict[str, Tensor]:
    """The weights of a draft that was made from `source` before, as stored.

    Raises BadCheckpoint for a folder that is none, PairMismatch for the draft of another target.
    """
    inspect_folder(folder)
    own, wanted = _first_tensors(folder), _first_tensors(source)
    same = own.keys() == wanted.keys() and all(own[name].shape == wanted[name].shape for name in own)
    if not same or any(not torch.equal(own[name], wanted[name]) for name in own if _frozen(name)):
        raise PairMismatch(
            f"{folder} was not made for this target: embedding or sizes differ. Choose another --start, or none."
        )
    return own


def demand_blocks(config: Mapping[str, object]) -> None:
    """UnsupportedModel for a target that has no more blocks than its draft would."""
    blocks = config.get("num_hidden_layers")
    if not isinstance(blocks, int) or blocks <= BLOCKS:
        raise UnsupportedModel(
            f"The target has {blocks} blocks; a draft of {BLOCKS} would be no faster. Leave out --kind layers."
        )


def _first_blocks(config: Mapping[str, object]) -> dict[str, object]:
    """The configuration of a model with fewer blocks: what is listed for each block is cut with them."""
    cut = {name: listed[:BLOCKS] for name in _LISTED if isinstance(listed := config.get(name), list)}
    return {**config, **cut, "num_hidden_layers": BLOCKS}


def _first_tensors(source: Path) -> dict[str, Tensor]:
    """Everything the weight files hold but later blocks."""
    tensors = {}
    for path in inspect_folder(source).weight_files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                block = _BLOCK.search(name)
                if block is None or int(block[1]) < BLOCKS:
                    tensors[name] = file.get_tensor(name)
    return tensors


def _frozen(name: str) -> bool:
    """Embedding and output head stay the target's."""
    return name.endswith(("embed_tokens.weight", "lm_head.weight"))
