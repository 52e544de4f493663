"""N-grams of the context propose: what the text itself has said after the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specchat.decode.drafters import Proposal
from specchat.decode.sampling import Sampling
from specchat.decode.stopping import ALWAYS, Stopping


class NgramDrafter:
    """Prompt lookup (Saxena 2023): what followed the last occurrence of the text's own last few ids.

    Longest n-gram first, latest occurrence. An index from n-gram to place grows with the text, so a
    round costs a few dictionary lookups whatever the length of the conversation. What it proposes is certain (its
    law is one-hot), whether right or not: how sure it is means nothing, the length of the n-gram does.
    """

    name = "ngram"

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self.sizes = range(longest, shortest - 1, -1)
        self.committed: list[int] = []
        self.followers: dict[tuple[int, ...], int] = {}

    def start(self, ids: Sequence[int], go_on: Callable[[], bool] = lambda: True) -> None:
        self.reset()
        self.commit(ids)

    def commit(self, ids: Sequence[int], drafted: Sequence[int] = ()) -> None:
        for token in ids:
            # Indexed only once it has a follower, so the text's own end never matches itself.
            for n in self.sizes:
                if len(self.committed) >= n:
                    self.followers[tuple(self.committed[-n:])] = len(self.committed)
            self.committed.append(token)

    def propose(
        self, n: int, sampling: Sampling, rng: torch.Generator, stopping: Stopping = ALWAYS
    ) -> Proposal:
        found = ((size, at) for size in self.sizes if (at := self._follower(size)) is not None)
        size, place = next(found, (0, 0))
        count = 0
        while size and count < n and stopping.takes(f"{size}-gram", None):
            count += 1
        if count == 0:
            return Proposal()
        period = len(self.committed) - place
        # Past the end of the text the repetition goes on: copy from what was just proposed.
        ids = tuple(self.committed[place + i % period] for i in range(count))
        return Proposal(ids, None, 0, self.name)

    def _follower(self, size: int) -> int | None:
        if len(self.committed) < size:
            return None
        return self.followers.get(tuple(self.committed[-size:]))

    def reset(self) -> None:
        self.committed = []
        self.followers = {}

    def cached(self) -> int:
        return 0
