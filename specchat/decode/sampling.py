"""From logits to a distribution, from a distribution to an id, and the verdict on a draft.

One `law_of` serves draft and target: that is what "aligned sampling" means here, and it makes the
acceptance rule see exactly the q that was sampled from. Everything is float32.

Nothing here makes the host wait for a device: what is drawn and judged stays on it, as tensors. So bad logits cannot
be refused on the spot. They make nan of the whole row of the law, and whoever reads from it next takes notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from specchat.decode.ids import Ids, on
from specchat.decode.largest import BLOCK, shares
from specchat.decode.law import Law, certain
from specchat.decode.offered import for_laws

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: the division by T would only amplify rounding."""

NUCLEUS_GUESS = 512
"""How many of the largest probabilities are sorted first when only top-p or min-p asks for an order."""


class BadLogits(ValueError):
    """A model returned NaN or infinite logits, so there is no distribution to sample from."""

    def __init__(self) -> None:
        super().__init__(
            "The model returned logits that are not numbers, so nothing can be sampled. "
            "Its weights may be damaged, or the precision too low for it: try --precision float32."
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next id is drawn. Immutable; the same value serves draft and target.

    Applied in this order: penalties, temperature, top-k, top-p, min-p (as transformers does).
    temperature below `GREEDY_BELOW` (or top_k = 1) takes the largest logit, lowest id on a tie. top_k = 0 is off.
    Penalties look at every id before the position: prompt, reply and the drafts before it.
    """

    temperature: float = 0.6
    top_k: int = 20
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(0 <= self.temperature < float("inf"), "temperature", self.temperature, "0 or more")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0 <= self.top_p <= 1, "top_p", self.top_p, "between 0 and 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1")
        _require(
            0 < self.repetition_penalty < float("inf"),
            "repetition_penalty",
            self.repetition_penalty,
            "above 0",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require(abs(getattr(self, name)) < float("inf"), name, getattr(self, name), "a finite number")

    @property
    def greedy(self) -> bool:
        """True when the law is a certainty: the largest logit."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """True when the law depends on which ids came before, beyond what the model itself sees."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def _require(holds: bool, name: str, value: float, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}; it must be {allowed}.")


@torch.inference_mode()
def law_of(logits: Tensor, history: Sequence[int], sampling: Sampling, drafted: Ids = ()) -> Law:
    """The law of the next id for each row.

    logits: [n, V] float32. history, then drafted: every id before the last row's prediction; each earlier row
    sees one id fewer. A row of logits that holds NaN or +inf, or nothing but -inf, gives nan from end to end.
    """
    if sampling.penalised:
        logits = _penalise(logits, history, drafted, sampling)
    if sampling.greedy:
        ids = logits.argmax(dim=-1, keepdim=True)
        return Law(logits.gather(-1, ids) * 0 + 1, ids)  # nan if the largest is no number
    if 0 < sampling.top_k < logits.shape[-1]:
        p, ids = shares(logits, sampling.top_k, sampling.temperature)
        return Law(_filter(p, sampling), ids)
    full = (logits / sampling.temperature).softmax(dim=-1)
    if sampling.top_p >= 1 and sampling.min_p <= 0:
        return Law(full)
    return Law(_nucleus(full, sampling))


def probs(logits: Tensor, history: Sequence[int], sampling: Sampling, drafted: Ids = ()) -> Tensor:
    """The same as a table [n, V], a column for each id."""
    return law_of(logits, history, sampling, drafted).dense(logits.shape[-1])


def checked(table: Tensor) -> Tensor:
    """The same laws [n, V]; raises BadLogits if a row of them is nan. The host waits for the answer."""
    if bool(table[:, 0].isnan().any()):
        raise BadLogits
    return table


def _nucleus(full: Tensor, sampling: Sampling) -> Tensor:
    """Top-p and min-p over a full distribution.

    On a CPU it sorts only the head when the head is enough; elsewhere the answer to that would be waited for.
    """
    width = full.shape[-1]
    if full.device.type == "cpu" and width > NUCLEUS_GUESS:
        values, ids = full.topk(NUCLEUS_GUESS, dim=-1)
        enough = (values.sum(dim=-1) >= sampling.top_p) | (values[:, -1] < sampling.min_p * values[:, 0])
        if bool(enough.all()):
            return torch.zeros_like(full).scatter_(-1, ids, _filter(values, sampling))
    values, ids = full.topk(width, dim=-1)
    return torch.zeros_like(full).scatter_(-1, ids, _filter(values, sampling))


def _filter(ordered: Tensor, sampling: Sampling) -> Tensor:
    """Top-p, then min-p, on probabilities in descending order; the first always stays. Renormalised."""
    if sampling.top_p >= 1 and sampling.min_p <= 0:
        return ordered
    before = ordered.cumsum(dim=-1) - ordered
    keep = (before < sampling.top_p) & (ordered >= sampling.min_p * ordered[:, :1])
    keep[:, 0] = True
    kept = ordered * keep
    return kept / kept.sum(dim=-1, keepdim=True)


def _penalise(logits: Tensor, history: Sequence[int], drafted: Ids, sampling: Sampling) -> Tensor:
    """Repetition (Keskar et al. 2019), presence and frequency penalties; row j sees its own history."""
    rows, width = logits.shape
    seen = torch.cat([on(logits.device, history), on(logits.device, drafted)])
    first = len(seen) - (rows - 1)
    # Ids that have no column are counted as nothing, wherever.
    once, seen = (seen < width).to(logits), seen.clamp(max=width - 1)
    counts = logits.new_zeros(width).scatter_add_(0, seen[:first], once[:first]).repeat(rows, 1)
    # Row j has seen the first j of the last rows - 1 ids.
    counts.scatter_add_(1, seen[first:].repeat(rows, 1), once[first:].repeat(rows, 1).tril(-1))
    present = counts > 0
    scaled = torch.where(
        logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty
    )
    out = torch.where(present, scaled - sampling.presence_penalty, logits)
    return out - sampling.frequency_penalty * counts if sampling.frequency_penalty else out


@torch.inference_mode()
def sample(weights: Tensor, rng: torch.Generator) -> Tensor:
    """Draws one index with probability proportional to weights [V] (inverse of the running sum).

    An int64 without dimensions, inside the range even if weights are nan. On a CPU the running sum is taken over
    blocks, and then inside the one that was met.
    """
    blocks = weights.device.type == "cpu" and len(weights) % BLOCK == 0 and len(weights) > 4 * BLOCK
    # In float32: a copy in float64 would take longer than everything else here.
    parts = weights.view(-1, BLOCK).sum(dim=-1) if blocks else weights
    running = parts.cumsum(dim=-1, dtype=torch.float64)
    point = uniform(rng) * running[-1]
    met = _met(running, point)
    if not blocks:
        return met
    inside = weights.view(-1, BLOCK).index_select(0, met).view(-1).cumsum(dim=-1, dtype=torch.float64)
    before = F.pad(running, (1, 0)).index_select(0, met).view(())
    # The two sums of a block may differ by rounding (about 1e-7 of it): then the point would lie behind all of it.
    point = torch.minimum(point - before, inside[-1] * (1 - 2**-52))
    return _met(inside, point).add_(met, alpha=BLOCK)


def uniform(rng: torch.Generator) -> Tensor:
    """A uniform number below 1, float64 without dimensions, where the generator is."""
    return torch.rand((), generator=rng, dtype=torch.float64, device=rng.device)


def uniforms(n: int, rng: torch.Generator) -> Tensor:
    """n of them, float32: one for each proposal that is judged."""
    return torch.rand(n, generator=rng, device=rng.device)


def _met(running: Tensor, point: Tensor) -> Tensor:
    """The first place whose running sum exceeds a point below the last of them, so that a weight of 0 is never drawn."""
    return torch.searchsorted(running[:-1], point, right=True)


def draw(law: Law, rng: torch.Generator) -> Tensor:
    """An id, int64 [1], by a law of one row, which need not sum to 1."""
    offer = for_laws(law)
    if offer is not None:
        return offer.draw(law, uniform(rng))
    return _id_at(law, sample(law.p[0], rng).view(1))


def _id_at(law: Law, place: Tensor) -> Tensor:
    """The id [1] of one entry of a law of one row."""
    return place if law.ids is None else law.ids[0].index_select(0, place)


class Verified(NamedTuple):
    """The verdict on a draft of n ids, and the probabilities behind it. int64 and float32, all on the device."""

    accepted: Tensor
    """How many proposals are kept, without dimensions."""
    following: Tensor
    """The id [1] that follows them."""
    p_following: Tensor
    """Its probability [1] by the target."""
    p_drafted: Tensor
    """Of each proposal at its place [n], by the target."""
    q_drafted: Tensor
    """The same by what it was drawn from."""


@torch.inference_mode()
def verify(p: Law, q: Law | None, drafted: Ids, rng: torch.Generator) -> Verified:
    """Judges a draft.

    p: n+1 rows, the target's law after each kept prefix. q: n rows, the law each proposal was really
    sampled from; None means certainty (one-hot at the proposal). Leviathan et al. 2023, algorithm 1:
    keep x with probability min(1, p(x)/q(x)); at the first rejection draw from norm(max(p - q, 0));
    all kept: draw from the last row of p.
    """
    n, ids = len(drafted), on(p.p.device, drafted)
    if n == 0:
        accepted, p_drafted, q_drafted = ids.new_zeros(()), p.p.new_empty(0), p.p.new_empty(0)
        own, left = p, p.p[:1]
    else:
        q = certain(ids) if q is None else q
        p_drafted, q_drafted = p.chances(ids), q.chances(ids)
        u = uniforms(n, rng)
        # Strict and without a division: p = 0 is refused even at u = 0, p = q is kept even at the largest u.
        accepted = (u * q_drafted < p_drafted).cumprod(dim=-1).sum()
        refused, place = accepted < n, accepted.clamp(max=n - 1)
        # One way for both ends: with all kept there is nothing to take from p.
        own = p.row(accepted)
        left = (own.p - q.row(place).at(own) * refused).clamp_(min=0.0)
        left = torch.where(left.sum() > 0, left, own.p)
    met = sample(left[0], rng).view(1)
    return Verified(accepted, _id_at(own, met), own.p[0].index_select(0, met), p_drafted, q_drafted)
