"""The draft of transformers' assisted generation in a benchmark: what it is, in words, and the model.

"Assistant" is the library's word for it; everywhere else here it is a draft.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from specchat.model.errors import BadCheckpoint
from specchat.model.loading import Loaded, load_model
from specchat.model.pairing import check
from specchat.model.provenance import about_file

UNTRAINED = 2
"""Layers of the assistant that needs no file."""


@dataclass(frozen=True, slots=True)
class Assistant:
    """name: what it is, for the table and the record."""

    module: PreTrainedModel
    name: str


def first_layers(model: PreTrainedModel, count: int = UNTRAINED) -> Assistant:
    """The target's first layers as they are: weights shared, nothing trained."""
    shallow = copy.copy(model)
    shallow._modules = dict(model._modules)
    shallow.config = copy.deepcopy(model.config)
    shallow.config.num_hidden_layers = count
    shallow.model = copy.copy(model.model)
    shallow.model._modules = dict(model.model._modules)
    shallow.model.config = shallow.config
    shallow.model.layers = model.model.layers[:count]
    return Assistant(shallow, f"the target's first {count} layers (untrained)")


def from_folder(folder: Path, target: Loaded) -> Assistant:
    """A checkpoint folder, in the target's precision, named by the folder and what its provenance says.

    Raises BadCheckpoint for what is no such folder, PairMismatch for one that does not fit the target.
    """
    if not folder.is_dir():
        raise BadCheckpoint(f"--assistant {folder} is no folder; give one that holds a checkpoint.")
    loaded = load_model(str(folder), dtype=target.dtype)
    check(target, loaded).demand()
    layers = loaded.module.config.get_text_config(decoder=True).num_hidden_layers
    facts = [f"{layers} layers", *_provenance(folder)]
    return Assistant(loaded.module, f"{loaded.name} ({', '.join(facts)})")


def _provenance(folder: Path) -> list[str]:
    """What `distil` wrote beside the folder, in words; nothing where nothing such stands."""
    try:
        about = json.loads(about_file(folder.resolve()).read_text(encoding="utf-8"))
        kept = float(about["held_out"]["acceptance_by_position"][0])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return []
    return ["trained", f"held-out acceptance {kept:.2f}"]
