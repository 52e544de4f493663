"""What can propose: a model, a chain of several; n-grams and heads in files of their own. One protocol for all.

A drafter is told the committed text and returns proposals with the law each was sampled from.
Whatever it proposes, the reply keeps the target's law; a drafter can only be slow, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specchat.decode.clock import finish
from specchat.decode.ids import Ids
from specchat.decode.law import Law, stacked
from specchat.decode.sampling import Sampling, draw, law_of
from specchat.decode.stopping import ALWAYS, Stopping

READ_CHUNK = 128
"""Prompt ids read per forward: the longest that a cancelled request goes on reading."""

WARM_CHUNK = 8
"""The same for a recurrent model that goes on from a state: it takes one id a forward then."""


class Forward(Protocol):
    """A model with its cache, as the algorithm sees it: ids in, logits out."""

    vocab: int
    """Width of the logits. Ids from `vocab` on do not exist; entries a head lacks are -inf."""
    capacity: int
    """The most ids the cache can hold."""
    can_rollback: bool
    """False for models whose state mixes the past in (recurrent): they decode plainly."""
    ids: list[int]
    """Exactly the ids whose state is cached: the cache and its description are one object. For those that were fed
    from the device, `decode.ids.UNKNOWN` stands until whoever fed them writes the values over it."""
    keep_states: bool
    """Set by a drafter that reads the target's states, before the first forward."""
    states: Tensor | None
    """With keep_states: [capacity, d]; row i is the last hidden state of ids[i], for every cached id."""

    def forward(self, ids: Ids) -> Tensor:
        """Appends ids to the cache; float32 logits [len(ids), vocab], one row for each of them.

        On a GPU it returns when the work is queued, not when it is done.
        """
        ...

    def read(self, ids: Ids) -> None:
        """As forward, for a prompt: the logits are not wanted."""
        ...

    def rollback(self, n: int) -> None:
        """Forgets the last n ids in O(1)."""
        ...

    def reset(self) -> None:
        """Forgets everything."""
        ...


def reuse(model: Forward, ids: Sequence[int]) -> int:
    """Cuts the cache back to what it shares with ids, leaving at least one id to feed. Returns what is kept."""
    kept = common_prefix(model.ids, ids[:-1])
    surplus = len(model.ids) - kept
    if surplus and model.can_rollback:
        model.rollback(surplus)
    elif surplus:
        model.reset()
        return 0
    return kept


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def device_of(model: Forward) -> torch.device:
    """Where a model works; the CPU if it does not say."""
    return torch.device(getattr(model, "device", "cpu"))


def read_prompt(model: Forward, ids: Sequence[int], go_on: Callable[[], bool] | None = None) -> int:
    """Reads what of ids[:-1] is not cached yet, in chunks. Returns ids read.

    With go_on each chunk is waited for, and before the next one `go_on` may say no.
    """
    start = len(model.ids)
    # A recurrent state is read in one go: such models take many ids only from an empty state.
    chunk = READ_CHUNK if model.can_rollback else WARM_CHUNK if model.ids else len(ids)
    while len(model.ids) < len(ids) - 1 and (go_on is None or go_on()):
        at = len(model.ids)
        model.read(ids[at : min(at + chunk, len(ids) - 1)])
        if go_on is not None:
            finish(device_of(model))
    return len(model.ids) - start


@dataclass(frozen=True, slots=True)
class Proposal:
    """ids to judge and q, n rows, the law each was drawn from (None: certainty). forwards: draft forwards spent.

    Ids that were drawn are a tensor, whose values nobody has waited for.
    """

    ids: Ids = ()
    q: Law | None = None
    forwards: int = 0
    source: str = ""


def certainty(row: Law, logits: Tensor, sampling: Sampling) -> float:
    """Probability of the likeliest next id: by the law, one row, that will be drawn from, and for a greedy draft,
    whose law is always certain, by its logits [1, V] at temperature 1. Known before anything is drawn.

    A number for the host, which decides by it: a stopping that looks waits for every proposal. A law that is broken
    counts as certain: it is drawn from, and the verdict sees that it is broken.
    """
    sure = float(logits.softmax(dim=-1).max() if sampling.greedy else row.p.max())
    return 1.0 if math.isnan(sure) else sure


def taken(stopping: Stopping, kind: str, row: Law, logits: Tensor, sampling: Sampling) -> bool:
    """Whether an id is drawn from this law, one row: asked with how sure the draft is, if that is wanted."""
    return stopping.takes(kind, certainty(row, logits, sampling) if stopping.looks else None)


class Drafter(Protocol):
    """The one protocol of everything that proposes.

    A drafter that reads the target's hidden states holds the target and sets its `keep_states`: when `start`
    or `propose` is called, the states of all committed ids but the last are in `target.states`.
    """

    def start(self, ids: Sequence[int], go_on: Callable[[], bool]) -> None:
        """Makes ids the committed text, keeping what an earlier request shares with it."""
        ...

    def commit(self, ids: Sequence[int], drafted: Sequence[int] = ()) -> None:
        """ids were appended to the committed text; the rest of the last proposal, whose values are `drafted`, was not."""
        ...

    def propose(
        self, n: int, sampling: Sampling, rng: torch.Generator, stopping: Stopping = ALWAYS
    ) -> Proposal:
        """At most n ids to follow the committed text (fewer, or none, when there is nothing to offer).

        `stopping` is asked before each id is drawn: leaving out an id already drawn would bias the reply.
        """
        ...

    def reset(self) -> None:
        """Forgets everything: after an error, or when the caches must go."""
        ...

    def cached(self) -> int:
        """Ids in the drafter's own cache (0 without one)."""
        ...


class ModelDrafter:
    """A second model proposes: sampled with the target's own settings, one forward a token.

    Between rounds: cached = committed - pending, pending ≥ 1. After a full acceptance two ids are
    pending (the last proposal was never fed, and the bonus); they share the next round's first forward.
    """

    def __init__(self, model: Forward, name: str = "model") -> None:
        self.model = model
        self.name = name
        self.committed: list[int] = []

    def start(self, ids: Sequence[int], go_on: Callable[[], bool]) -> None:
        self.committed = list(ids)
        reuse(self.model, ids)
        # A context longer than the draft's: it cannot propose at all, and must not be fed.
        if len(ids) <= self.model.capacity:
            read_prompt(self.model, ids, go_on)

    def commit(self, ids: Sequence[int], drafted: Sequence[int] = ()) -> None:
        base = len(self.committed)
        self.committed.extend(ids)
        # Behind the committed text only proposals were fed, and their values are known now.
        fed = max(0, len(self.model.ids) - base)
        kept = common_prefix(drafted[:fed], ids[:-1])
        if fed:
            self.model.ids[base : base + kept] = drafted[:kept]
            self.model.rollback(fed - kept)

    def propose(
        self, n: int, sampling: Sampling, rng: torch.Generator, stopping: Stopping = ALWAYS
    ) -> Proposal:
        n = min(n, self.model.capacity - len(self.committed) + 1)
        if n < 1 or not stopping.starts(self.name):
            return Proposal()
        ids = torch.empty(0, dtype=torch.long, device=rng.device)
        rows: list[Law] = []
        feed: Ids = self.committed[len(self.model.ids) :]
        forwards = 0
        if len(feed) > 2:
            # Other drafters served the last rounds: what was missed needs no logits.
            read_prompt(self.model, self.committed)
            feed, forwards = feed[-1:], 1
        while True:
            # Onto the target's device, where the generator draws and the verdict falls.
            logits = self.model.forward(feed)[-1:].to(rng.device)
            forwards += 1
            row = law_of(logits, self.committed, sampling, ids)
            if not taken(stopping, self.name, row, logits, sampling):
                break
            # What was drawn is fed as it is: nobody waits for its value.
            feed = draw(row, rng)
            ids = torch.cat([ids, feed])
            rows.append(row)
            if len(rows) == n or not stopping.starts(self.name):
                break
        if not rows:
            return Proposal(forwards=forwards)
        return Proposal(ids, stacked(rows), forwards, self.name)

    def reset(self) -> None:
        self.committed = []
        self.model.reset()

    def cached(self) -> int:
        return len(self.model.ids)


class ChainDrafter:
    """Asks each drafter in turn and takes the first that has something to offer: the free one goes first."""

    name = "chain"

    def __init__(self, *links: Drafter) -> None:
        self.links = links

    def start(self, ids: Sequence[int], go_on: Callable[[], bool]) -> None:
        for link in self.links:
            link.start(ids, go_on)

    def commit(self, ids: Sequence[int], drafted: Sequence[int] = ()) -> None:
        for link in self.links:
            link.commit(ids, drafted)

    def propose(
        self, n: int, sampling: Sampling, rng: torch.Generator, stopping: Stopping = ALWAYS
    ) -> Proposal:
        proposal = Proposal()
        for link in self.links:
            # The last one's empty hands too, for the forwards they took.
            proposal = link.propose(n, sampling, rng, stopping)
            if len(proposal.ids):
                break
        return proposal

    def reset(self) -> None:
        for link in self.links:
            link.reset()

    def cached(self) -> int:
        return sum(link.cached() for link in self.links)
