"""Stand-ins for models: what they say, when they fail and how often they were asked is written in the test.

`Script` answers from a table, so laws and accept/reject patterns are forced exactly; `Watched` counts and can
be told to be slow or to fail; `Forced` proposes what the test lists.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from specchat.decode import law as laws
from specchat.decode.drafters import Forward, Proposal
from specchat.decode.ids import UNKNOWN, Ids, listed
from specchat.decode.sampling import Sampling
from specchat.decode.stopping import ALWAYS, Stopping

# Tiny models are faster on one thread, and the suite shares its machine.
torch.set_num_threads(1)

Law = Callable[[tuple[int, ...]], Sequence[float]]
"""Prefix → logits of the next id."""


class Script:
    """A `Forward` whose logits come from `law`. Its cache is the list of ids alone.

    As a real one it does not put the values of ids from the device into `ids`; it keeps them to itself.
    """

    def __init__(self, law: Law, vocab: int, capacity: int = 512, can_rollback: bool = True) -> None:
        self.law = law
        self.vocab = vocab
        self.capacity = capacity
        self.can_rollback = can_rollback
        self.ids: list[int] = []
        self._fed: list[int] = []
        """The values of `ids`."""
        self.keep_states = False
        self.states: Tensor | None = None

    def forward(self, ids: Ids) -> Tensor:
        values = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        assert values, "a forward is given at least one id"
        assert all(0 <= id < self.vocab for id in values), f"an id outside the vocabulary was fed: {values}"
        assert len(self.ids) + len(values) <= self.capacity, "more was fed than the context holds"
        del self._fed[len(self.ids) :]
        assert all(id in (UNKNOWN, fed) for id, fed in zip(self.ids, self._fed, strict=True)), (
            "the list of ids was told other values than were fed"
        )
        self.ids += listed(ids)
        rows = []
        for id in values:
            self._fed.append(id)
            rows.append(list(self.law(tuple(self._fed))))
        if self.keep_states:
            if self.states is None:
                self.states = torch.full((self.capacity, 1), -1.0)
            first = len(self.ids) - len(ids)
            self.states[first : len(self.ids)] = torch.arange(first, len(self.ids)).float().unsqueeze(-1)
        return torch.tensor(rows, dtype=torch.float32)

    def read(self, ids: Ids) -> None:
        self.forward(ids)

    def rollback(self, n: int) -> None:
        assert 0 <= n <= len(self.ids), f"a rollback of {n} with {len(self.ids)} ids cached"
        assert n == 0 or self.can_rollback, "a rollback of a model that cannot"
        del self.ids[len(self.ids) - n :]

    def reset(self) -> None:
        self.ids = []


def logs(probabilities: Sequence[float]) -> list[float]:
    """Logits whose softmax is `probabilities`."""
    return [math.log(p) if p > 0 else -math.inf for p in probabilities]


def constant(probabilities: Sequence[float]) -> Law:
    """The same law after every prefix."""
    row = logs(probabilities)
    return lambda prefix: row


def writes(text: Sequence[int], prompt: int, vocab: int) -> Law:
    """One-hot: after `prompt` ids, place i of the reply is text[i]; behind the text, id 0."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        place = len(prefix) - prompt
        wanted = text[place] if 0 <= place < len(text) else 0
        return [0.0 if id == wanted else -math.inf for id in range(vocab)]

    return law


def arbitrary(seed: int, vocab: int, spread: float = 1.5) -> Law:
    """Reproducible logits that depend on the last three ids and on their place."""

    @cache
    def row(tail: tuple[int, ...], place: int) -> tuple[float, ...]:
        mixed = seed
        for value in (*tail, place):
            mixed = (mixed * 1_000_003 + value + 17) % (2**31)
        rng = torch.Generator().manual_seed(mixed)
        return tuple((torch.randn(vocab, generator=rng) * spread).tolist())

    return lambda prefix: row(prefix[-3:], len(prefix))


class Watched:
    """A `Forward` around another one: counts, and calls `before(number of the call)` ahead of every forward."""

    def __init__(self, inner: Forward, before: Callable[[int], None] = lambda call: None) -> None:
        self.inner = inner
        self.before = before
        self.calls = 0
        self.rows: list[int] = []
        """Ids of each forward (reading included)."""
        self.rollbacks: list[int] = []

    def forward(self, ids: Ids) -> Tensor:
        self._note(ids)
        return self.inner.forward(ids)

    def read(self, ids: Ids) -> None:
        self._note(ids)
        self.inner.read(ids)

    def rollback(self, n: int) -> None:
        assert n >= 0, f"a negative rollback: {n}"
        self.rollbacks.append(n)
        self.inner.rollback(n)

    def reset(self) -> None:
        self.inner.reset()

    def _note(self, ids: Ids) -> None:
        self.calls += 1
        self.rows.append(len(ids))
        self.before(self.calls)

    @property
    def ids(self) -> list[int]:
        return self.inner.ids

    @property
    def vocab(self) -> int:
        return self.inner.vocab

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    @property
    def can_rollback(self) -> bool:
        return self.inner.can_rollback

    @property
    def states(self) -> Tensor | None:
        return self.inner.states

    @property
    def keep_states(self) -> bool:
        return self.inner.keep_states

    @keep_states.setter
    def keep_states(self, keep: bool) -> None:
        self.inner.keep_states = keep

    def __getattr__(self, name: str) -> object:
        # What a runner has beyond the protocol (device, cache_bytes, …).
        return getattr(self.__dict__["inner"], name)


def failing(model: Forward, at: int, error: BaseException) -> Watched:
    """Raises at its forward number `at` (from 1, reading counted), once."""

    def before(call: int) -> None:
        if call == at:
            raise error

    return Watched(model, before)


def slow(model: Forward, seconds: float) -> Watched:
    """Takes at least `seconds` a forward."""
    return Watched(model, lambda call: time.sleep(seconds))


class Forced:
    """A drafter that offers the listed blocks, one a round, then nothing. q: None is certainty."""

    name = "forced"

    def __init__(self, blocks: Sequence[Sequence[int]], q: Tensor | None = None) -> None:
        self.blocks = [tuple(block) for block in blocks]
        self.q = q
        self.asked: list[int] = []
        """n of every propose."""
        self.committed: list[int] = []
        self.commits: list[tuple[int, ...]] = []

    def start(self, ids: Sequence[int], go_on: Callable[[], bool]) -> None:
        self.committed = list(ids)

    def commit(self, ids: Sequence[int], drafted: Sequence[int] = ()) -> None:
        self.committed.extend(ids)
        if ids:
            self.commits.append(tuple(ids))

    def propose(
        self, n: int, sampling: Sampling, rng: torch.Generator, stopping: Stopping = ALWAYS
    ) -> Proposal:
        self.asked.append(n)
        ids = self.blocks.pop(0)[:n] if self.blocks else ()
        return Proposal(
            ids, None if self.q is None else laws.Law(self.q[: len(ids)]), 0, self.name if ids else ""
        )

    def reset(self) -> None:
        self.committed = []

    def cached(self) -> int:
        return 0
