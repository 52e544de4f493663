"""Finished conversations on disk: `data.Corpus` reads what is written here.

A shard is two files, complete or absent: `.npz` (ids, roles, starts, and for each id the target's best logits for
the id after it) and `.hidden.npy` (its state, so that training may map it instead of reading it). The index names
the shards that count; it is replaced last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

TEMPLATE, USER, ASSISTANT = 0, 1, 2
"""Who wrote an id."""
TOP = 32
"""Logits kept of each law, the best first."""


@dataclass(slots=True)
class Record:
    """One conversation, an entry for each id. Rows: states [d], top_ids and top_logits [TOP], all as arrays."""

    ids: list[int]
    roles: list[int]
    states: list[npt.NDArray[np.float16]]
    top_ids: list[npt.NDArray[np.int64]]
    top_logits: list[npt.NDArray[np.float16]]


@dataclass(slots=True)
class Shards:
    """The folder's shards. `tokens`: ids in all that count."""

    folder: Path
    vocab: int
    seed: int = 0
    index: list[dict[str, int | str]] = field(default_factory=list)
    waiting: list[Record] = field(default_factory=list)
    """Finished conversations that are in no shard yet."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._index.exists():
            self.index = json.loads(self._index.read_text(encoding="utf-8"))

    @property
    def _index(self) -> Path:
        return self.folder / "index-0.json"

    @property
    def tokens(self) -> int:
        """Ids in finished shards."""
        return sum(int(entry["tokens"]) for entry in self.index)

    @property
    def pending(self) -> int:
        """Ids that wait for a shard."""
        return sum(len(record.ids) for record in self.waiting)

    def flush(self) -> None:
        """Writes what waits as one shard. Whatever interrupts it, the folder holds whole shards only."""
        if not self.waiting:
            return
        number = len(self.index)
        name = f"shard-0-{number:04d}"
        kind = np.uint16 if self.vocab <= 1 << 16 else np.uint32
        starts = np.cumsum([0] + [len(record.ids) for record in self.waiting]).astype(np.int64)
        roles = np.concatenate([np.array(record.roles, np.uint8) for record in self.waiting])
        states = np.stack([row for r in self.waiting for row in r.states])
        ids = np.concatenate([np.array(record.ids, kind) for record in self.waiting])
        top_ids = np.stack([row for r in self.waiting for row in r.top_ids]).astype(kind)
        top_logits = np.stack([row for r in self.waiting for row in r.top_logits])
        self._place(f"{name}.hidden.npy", lambda file: np.save(file, states))
        self._place(
            f"{name}.npz",
            lambda file: np.savez(
                file, ids=ids, roles=roles, starts=starts, top_ids=top_ids, top_logits=top_logits
            ),
        )
        entry: dict[str, int | str] = {
            "shard": number,
            "file": f"{name}.npz",
            "hidden": f"{name}.hidden.npy",
            "tokens": int(starts[-1]),
            "conversations": len(self.waiting),
            "user": int((roles == USER).sum()),
            "assistant": int((roles == ASSISTANT).sum()),
            "seed": self.seed,
        }
        temporary = self.folder / "index-0.tmp"
        temporary.write_text(json.dumps([*self.index, entry], indent=0), encoding="utf-8")
        os.replace(temporary, self._index)
        self.index.append(entry)
        self.waiting = []

    def _place(self, name: str, write: Callable[[BinaryIO], None]) -> None:
        temporary = self.folder / f"{name}.tmp"
        with temporary.open("wb") as file:
            write(file)
        os.replace(temporary, self.folder / name)
