"""A small head that reads the target's hidden states proposes (EAGLE, Li et al. 2024).

What the target computed for the committed text lies in `target.states`, so the head starts every round from the
truth. Its own guesses serve as states only within a proposal, and are forgotten with the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specchat.decode.clock import finish
from specchat.decode.drafters import READ_CHUNK, Forward, Proposal, common_prefix, device_of, taken
from specchat.decode.ids import Ids
from specchat.decode.law import Law, stacked
from specchat.decode.sampling import Sampling, draw, law_of
from specchat.decode.stopping import ALWAYS, Stopping


class Head(Protocol):
    """Pairs (state of id i, id i+1) in, guessed states of ids i+1 out, over a cache of pairs."""

    name: str
    capacity: int
    """The most pairs the cache can hold."""
    length: int
    """Pairs in the cache."""
    subset: Tensor
    """The id of each column of the logits; ids that are not among them are never proposed."""

    def feed(self, states: Tensor, ids: Ids) -> Tensor:
        """Appends pairs; the states [n, d] they lead to."""
        ...

    def logits(self, outputs: Tensor) -> Tensor:
        """float32 [n, len(subset)]: the law of the id after each pair."""
        ...

    def rollback(self, n: int) -> None:
        """Forgets the last n pairs in O(1)."""
        ...

    def reset(self) -> None:
        """Forgets everything."""
        ...


class HeadDrafter:
    """Proposes with a head over the target's states, sampled with the target's own settings.

    Outside `propose` the head's cache holds true pairs only, a prefix of the committed text's: pair i is
    (the target's state of id i, id i+1). Sets the target's `keep_states`, so make it before the first forward.
    """

    def __init__(self, target: Forward, head: Head) -> None:
        self.target = target
        self.head = head
        self.name = head.name
        self.committed: list[int] = []
        self._places = {token: place for place, token in enumerate(head.subset.tolist())}
        target.keep_states = True

    def start(self, ids: Sequence[int], go_on: Callable[[], bool]) -> None:
        # Pair i holds ids i and i + 1: of n ids in common, n - 1 pairs are in common.
        self._forget_behind(common_prefix(self.committed, ids) - 1)
        self.committed = list(ids)
        if len(ids) - 1 <= self.head.capacity:
            while self._known() - self.head.length > READ_CHUNK and go_on():
                self._feed(READ_CHUNK)
                finish(device_of(self.target))

    def commit(self, ids: Sequence[int], drafted: Sequence[int] = ()) -> None:
        self.committed.extend(ids)

    def propose(
        self, n: int, sampling: Sampling, rng: torch.Generator, stopping: Stopping = ALWAYS
    ) -> Proposal:
        pairs = len(self.committed) - 1
        n = min(n, self.head.capacity - pairs + 1)
        if n < 1 or pairs < 1 or self._known() < pairs or not stopping.starts(self.name):
            return Proposal()
        # At least one pair is fed: its output is what the first proposal is drawn from.
        self._forget_behind(pairs - 1)
        forwards = 0
        state = None
        while self.head.length < pairs:
            state = self._feed(READ_CHUNK)
            forwards += 1
        assert state is not None
        history, subset = self._history(sampling), self.head.subset.to(rng.device)
        columns = torch.empty(0, dtype=torch.long, device=rng.device)
        rows: list[Law] = []
        try:
            while True:
                # Onto the target's device, where the generator draws and the verdict falls.
                logits = self.head.logits(state).to(rng.device)
                row = law_of(logits, history, sampling, columns)
                if not taken(stopping, self.name, row, logits, sampling):
                    break
                columns = torch.cat([columns, draw(row, rng)])
                rows.append(row)
                if len(rows) == n or not stopping.starts(self.name):
                    break
                # What was drawn is fed as it is: nobody waits for its value.
                state = self.head.feed(state, subset[columns[-1:]])
                forwards += 1
        finally:
            self._forget_behind(pairs)
        if not rows:
            return Proposal(forwards=forwards)
        return Proposal(subset[columns], self._renamed(stacked(rows)), forwards, self.name)

    def reset(self) -> None:
        self.committed = []
        self.head.reset()

    def cached(self) -> int:
        return self.head.length

    def _known(self) -> int:
        """True pairs that can be fed: those whose state the target has computed."""
        return min(len(self.committed) - 1, len(self.target.ids)) if self.target.states is not None else 0

    def _forget_behind(self, pairs: int) -> None:
        self.head.rollback(max(0, self.head.length - max(0, pairs)))

    def _feed(self, most: int) -> Tensor:
        """Feeds the next true pairs; the state [1, d] that the last of them leads to."""
        at = self.head.length
        end = min(at + most, len(self.committed) - 1)
        assert self.target.states is not None
        return self.head.feed(self.target.states[at:end], self.committed[at + 1 : end + 1])[-1:]

    def _history(self, sampling: Sampling) -> list[int]:
        """What of the committed text penalties look at, as columns of the head's logits: filters and penalties apply among the ids it may propose."""
        if not sampling.penalised:
            return []
        return [self._places[id] for id in self.committed if id in self._places]

    def _renamed(self, columns: Law) -> Law:
        """By ids instead of columns of the head's logits: what is not among them has no chance."""
        subset = self.head.subset.to(columns.p.device)
        if columns.ids is not None:
            return Law(columns.p, subset[columns.ids])
        full = columns.p.new_zeros((len(columns), self.target.vocab))
        full[:, subset] = columns.p
        return Law(full)
