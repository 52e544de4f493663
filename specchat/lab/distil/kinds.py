"""The kinds of draft that can be made: what sets a run for one apart from a run for the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from specchat.lab.distil.data import Corpus
from specchat.lab.distil.export import LAYERS, export, export_layers
from specchat.lab.distil.layers import LayersNet
from specchat.lab.distil.network import HeadNet
from specchat.lab.distil.short import demand_blocks, read_short
from specchat.lab.distil.start import trainer_at
from specchat.lab.distil.train import Recipe, Trainer
from specchat.model.catalog import PairOptions
from specchat.model.checkpoint import inspect_folder
from specchat.model.compact import CompactDecoder
from specchat.model.head_file import load_head, read_head
from specchat.model.provenance import about_file
from specchat.model.sources import resolve

Say = Callable[[str], None]


class Kind(Protocol):
    """One kind of draft, from the check of its arguments to its files."""

    places: str
    """What the held-out acceptance by position means."""

    def check(self, out: Path) -> None:
        """ValueError unless a draft may be written there; nothing is written yet."""
        ...

    def check_target(self, target: CompactDecoder, start: Path | None) -> None:
        """A ModelError where no such draft can be made, or `start` is the draft of another target."""
        ...

    def trainer(
        self, target: CompactDecoder, recipe: Recipe, folder: Path, say: Say, start: Path | None
    ) -> Trainer:
        """A trainer over the folder's texts, at its last checkpoint."""
        ...

    def export(
        self, out: Path, trainer: Trainer, target: CompactDecoder, name: str, about: Mapping[str, object]
    ) -> None:
        """Writes the draft and its provenance, and reads it again."""
        ...


class Head:
    """One block over the target's last hidden state: a single file."""

    places = (
        "mean of sum(min(p, q)) over the replies' tokens; position k is judged k-1 tokens "
        "behind the newest state that the target gave the draft"
    )

    def check(self, out: Path) -> None:
        """See Kind."""
        if out.suffix != ".safetensors":
            raise ValueError(f"--out is {out}; its name must end in .safetensors.")

    def check_target(self, target: CompactDecoder, start: Path | None) -> None:
        """See Kind."""
        if start is not None:
            read_head(start, target)

    def trainer(
        self, target: CompactDecoder, recipe: Recipe, folder: Path, say: Say, start: Path | None
    ) -> Trainer:
        """See Kind."""
        return trainer_at(target, Corpus(folder / "texts"), recipe, folder, say, start)

    def export(
        self, out: Path, trainer: Trainer, target: CompactDecoder, name: str, about: Mapping[str, object]
    ) -> None:
        """See Kind."""
        assert isinstance(trainer.net, HeadNet)
        export(out, trainer.net, trainer.maker.subset, target, name, about)
        load_head(out, target)


class Layers:
    """The target's first blocks as a model of their own: a checkpoint folder."""

    places = (
        "mean of sum(min(p, q)) over the replies' tokens; one number, since this draft reads ids only: a position "
        "behind the target's last word is as good as the first"
    )

    def __init__(self, options: PairOptions) -> None:
        self._options = options

    @property
    def _source(self) -> Path:
        return resolve(self._options.target, self._options.cache_dir)

    def check(self, out: Path) -> None:
        """See Kind."""
        if out.suffix == ".safetensors":
            raise ValueError(
                f"--out is {out}; --kind layers makes a folder, whose name must not end in .safetensors."
            )
        if out.exists() and not out.is_dir():
            raise ValueError(
                f"--out is {out}, which is a file; --kind layers makes a folder. Choose another name."
            )
        if out.is_dir() and any(out.iterdir()) and not _is_own(out):
            raise ValueError(
                f"--out is {out}, a folder that holds something else already; choose another name, or empty it."
            )

    def check_target(self, target: CompactDecoder, start: Path | None) -> None:
        """See Kind."""
        demand_blocks(inspect_folder(self._source).config)
        if start is not None:
            read_short(start, self._source)

    def trainer(
        self, target: CompactDecoder, recipe: Recipe, folder: Path, say: Say, start: Path | None
    ) -> Trainer:
        """See Kind. Its checkpoints lie apart from those of a head, which is made from the same texts."""
        own = folder / "layers"
        own.mkdir(exist_ok=True)
        recipe = replace(recipe, unroll=1, rows=2000, matrix_rate=0.02, norm_rate=0.01)
        return trainer_at(target, Corpus(folder / "texts"), recipe, own, say, start, self._source)

    def export(
        self, out: Path, trainer: Trainer, target: CompactDecoder, name: str, about: Mapping[str, object]
    ) -> None:
        """See Kind."""
        assert isinstance(trainer.net, LayersNet)
        export_layers(out, trainer.net, self._source, name, about)
        read_short(out, self._source)


def kind_of(name: str, options: PairOptions) -> Kind:
    """The kind of that name: head or layers."""
    return Layers(options) if name == "layers" else Head()


def _is_own(out: Path) -> bool:
    """Whether the folder was written by an earlier run of this command."""
    try:
        return bool(json.loads(about_file(out).read_text(encoding="utf-8"))["kind"] == LAYERS)
    except (OSError, ValueError, KeyError, TypeError):
        return False
