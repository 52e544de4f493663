"""What the target wrote, as training pairs: shards on disk, held-out conversations, the draft's vocabulary."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.lab.distil.network import Packed
from specchat.lab.distil.shards import ASSISTANT, USER

HELD_OUT = 20
"""Every so-manieth conversation is never trained on."""


@dataclass(slots=True)
class Conversation:
    """One conversation of a shard; arrays are views of the shard's. used: times it was trained on."""

    ids: NDArray[np.integer]
    roles: NDArray[np.uint8]
    top_ids: NDArray[np.integer]
    top_logits: NDArray[np.float16]
    states: NDArray[np.float16]
    used: int = 0


@dataclass(slots=True)
class Corpus:
    """The shards of a folder; `refresh` takes in those that were finished since."""

    folder: Path
    train: list[Conversation] = field(default_factory=list)
    held_out: list[Conversation] = field(default_factory=list)
    tokens: int = 0
    order: list[str] = field(default_factory=list)
    """The shards' files, in the order in which they were read."""

    def refresh(self, first: Sequence[str] = ()) -> int:
        """Reads the indexes again, the shards `first` before all others; returns the number of new shards."""
        hidden: dict[str, str] = {}
        for index in sorted(self.folder.glob("index-*.json")):
            hidden |= {e["file"]: e["hidden"] for e in json.loads(index.read_text(encoding="utf-8"))}
        new = [file for file in [*first, *hidden] if file in hidden and file not in self.order]
        for file in dict.fromkeys(new):
            self._add(file, hidden[file])
        return len(new)

    def _add(self, file: str, hidden: str) -> None:
        with np.load(self.folder / file) as arrays:
            ids, roles, starts = arrays["ids"], arrays["roles"], arrays["starts"]
            top_ids, top_logits = arrays["top_ids"], arrays["top_logits"]
        states = np.load(self.folder / hidden, mmap_mode="r")
        for i, (a, b) in enumerate(itertools.pairwise(starts)):
            chat = Conversation(ids[a:b], roles[a:b], top_ids[a:b], top_logits[a:b], states[a:b])
            (self.held_out if i % HELD_OUT == HELD_OUT - 1 else self.train).append(chat)
        self.tokens += len(ids)
        self.order.append(file)

    def draw(self, rows: int, rng: random.Random) -> list[Conversation]:
        """Conversations of about so many ids together, the least used ones first, in random order."""
        least = sorted(self.train, key=lambda c: (c.used, rng.random()))
        chosen, total = [], 0
        for chat in least:
            if total >= rows:
                break
            chat.used += 1
            chosen.append(chat)
            total += len(chat.ids)
        return chosen


def vocabulary(chats: list[Conversation], size: int, top_k: int, temperature: float, total: int) -> Tensor:
    """The ids with the largest share of the target's own law in the replies, ascending; every written id counts too."""
    mass = np.zeros(total)
    for chat in chats:
        reply = np.flatnonzero(chat.roles[1:] == ASSISTANT)
        logits = chat.top_logits[reply, :top_k].astype(np.float32) / temperature
        p = np.exp(logits - logits[:, :1])
        p /= p.sum(1, keepdims=True)
        np.add.at(mass, chat.top_ids[reply, :top_k].astype(np.int64).ravel(), p.ravel())
        np.add.at(mass, chat.ids[chat.roles == ASSISTANT].astype(np.int64), 0.1)
    best = np.argsort(-mass, kind="stable")[:size]
    return torch.from_numpy(np.sort(best))


@dataclass(frozen=True, slots=True)
class Batch:
    """pairs; rows [m] that are judged; p [m, k], the target's law there, over places [m, k] of the draft's
    vocabulary (-1: not in it, its p is 0 here and lost); goals [n, d], the true state each pair stands for."""

    pairs: Packed
    rows: Tensor
    places: Tensor
    p: Tensor
    goals: Tensor


class Maker:
    """Makes batches: the target's exact law at the training temperature, in the draft's vocabulary."""

    def __init__(self, table: Tensor, subset: Tensor, temperature: float, top_k: int) -> None:
        self.table = table
        self.subset = subset
        self.place = torch.full((table.shape[0],), -1, dtype=torch.long)
        self.place[subset] = torch.arange(len(subset))
        self.temperature = temperature
        self.top_k = top_k

    def batch(self, chats: list[Conversation], user_share: float, rng: random.Random) -> Batch:
        """user_share: share of the places in users' turns that are judged as well."""
        states, goals, embeddings, opening, rows, ids, logits = [], [], [], [], [], [], []
        base = 0
        for chat in chats:
            n = len(chat.ids) - 1
            own = torch.from_numpy(chat.states.astype(np.float32))
            states.append(own[:-1])
            goals.append(own[1:])
            embedded = self.table[torch.from_numpy(chat.ids.astype(np.int64))].float()
            embeddings.append(embedded[1:])
            opening.append(embedded[:1])
            follows = chat.roles[2:]
            judged = follows == ASSISTANT
            if user_share:
                lot = np.random.default_rng(rng.getrandbits(32)).random(len(follows))
                judged |= (follows == USER) & (lot < user_share)
            places = np.flatnonzero(judged)
            rows.append(torch.from_numpy(places + base))
            ids.append(torch.from_numpy(chat.top_ids[places + 1, : self.top_k].astype(np.int64)))
            logits.append(torch.from_numpy(chat.top_logits[places + 1, : self.top_k].astype(np.float32)))
            base += n
        p = (torch.cat(logits) / self.temperature).softmax(-1)
        place = self.place[torch.cat(ids)]
        lengths = tuple(len(chat.ids) - 1 for chat in chats)
        pairs = Packed(torch.cat(states), torch.cat(embeddings), torch.cat(opening), lengths)
        return Batch(pairs, torch.cat(rows), place, p.masked_fill(place < 0, 0.0), torch.cat(goals))
