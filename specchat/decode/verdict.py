"""The verdict of a round on its way to the host: one small tensor, which the round reads once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.decode.drafters import Proposal
from specchat.decode.events import Origin, Rejected, Token
from specchat.decode.ids import on
from specchat.decode.law import Law
from specchat.decode.offered import for_laws
from specchat.decode.sampling import uniform, uniforms, verify


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a draft. p and q: probabilities of each proposal at its place, q of certainty is 1."""

    drafted: tuple[int, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    accepted: int
    following: int
    p_following: float
    sound: bool
    """False if one of the target's rows was no law."""

    @property
    def draft_sound(self) -> bool:
        """False if a proposal was drawn from what is no law."""
        return not any(map(math.isnan, self.q))

    @property
    def block(self) -> tuple[int, ...]:
        """The proposals that were kept, and the id that follows them."""
        return (*self.drafted[: self.accepted], self.following)

    def tokens(self, kept: int) -> tuple[Token, ...]:
        """The first `kept` ids of the block as they are emitted."""
        p = (*self.p[: self.accepted], self.p_following)
        return tuple(
            Token(id, self._origin(i), p[i], self.q[i] if i < self.accepted else None, i)
            for i, id in enumerate(self.block[:kept])
        )

    def rejected(self) -> Rejected | None:
        """The proposal that was turned down, if one was."""
        i = self.accepted
        return Rejected(self.drafted[i], self.p[i], self.q[i], i) if i < len(self.drafted) else None

    def _origin(self, place: int) -> Origin:
        if place < self.accepted:
            return "accepted"
        if not self.drafted:
            return "plain"
        return "bonus" if self.accepted == len(self.drafted) else "recovered"


def judge(p: Law, draft: Proposal, rng: torch.Generator) -> Tensor:
    """The verdict on a draft of n ids by the target's law, n+1 rows; float64 [4 + 3n]: see `read`.

    float64 holds every id and every float32 exactly. Nothing is read to the host yet.
    """
    ids = on(p.p.device, draft.ids)
    offer = for_laws(p, draft.q)
    if offer is not None:
        return offer.judge(p, draft.q, ids, uniforms(len(ids), rng), uniform(rng))
    it = verify(p, draft.q, ids, rng)
    # A row is nan from end to end or nowhere, so its first place speaks for all of it.
    rows = p.p[:, 0].sum(dtype=torch.float64)
    numbers = (rows.view(1), it.accepted.view(1), it.following, it.p_following)
    return torch.cat([*numbers, ids, it.p_drafted, it.q_drafted])


def read(packed: Tensor) -> Verdict:
    """What `judge` packed, on the host: the one time that a round waits for the device."""
    rows, accepted, following, p_following, *rest = packed.tolist()
    n = len(rest) // 3
    return Verdict(
        drafted=tuple(map(int, rest[:n])),
        p=tuple(rest[n : 2 * n]),
        q=tuple(rest[2 * n :]),
        accepted=int(accepted),
        following=int(following),
        p_following=p_following,
        sound=not math.isnan(rows),
    )
