"""What the engine is measured against: a reference without cache, an independent law, an exact integral.

`reference` recomputes every token from scratch. `library_law` builds the law of the next id from the
transformers library's own processors. `exact_verdict` integrates `verify` over its uniform draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specchat.decode.law import Law
from specchat.decode.sampling import Sampling, verify
from tests.fakes import Script
from tests.tiny import TINY_VOCAB

GREEDY = Sampling(temperature=0.0)
TIE = 1e-4
"""Two float32 logits closer than this may swap places between kernels of another shape."""
ALPHA = 1e-6
"""False-alarm rate of each χ² test here, were its seeds drawn afresh; they are fixed, so it passes or not."""


# -- the reference ----------------------------------------------------------------------------------


@torch.inference_mode()
def full_logits(model: PreTrainedModel, ids: Sequence[int], vocab: int = TINY_VOCAB) -> Tensor:
    """Logits [len(ids), vocab] of the whole text at once, without any cache."""
    return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :, :vocab].float()


def library_scores(logits: Tensor, history: Sequence[int], sampling: Sampling) -> Tensor:
    """Penalised logits [V] by the library's processor; presence and frequency as their definition says."""
    row, seen = logits.clone().unsqueeze(0), torch.tensor([list(history)], dtype=torch.long)
    if sampling.repetition_penalty != 1 and history:
        row = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(seen, row)
    for id in set(history):
        row[0, id] -= sampling.presence_penalty + sampling.frequency_penalty * list(history).count(id)
    return row[0]


def library_law(logits: Tensor, history: Sequence[int], sampling: Sampling) -> Tensor:
    """The law of the next id [V] by the library's own processors, in its order."""
    row = library_scores(logits, history, sampling).unsqueeze(0)
    none = torch.zeros(1, 0, dtype=torch.long)
    if sampling.temperature < 1e-5:
        return torch.nn.functional.one_hot(row[0].argmax(), row.shape[-1]).float()
    row = TemperatureLogitsWarper(sampling.temperature)(none, row)
    if sampling.top_k:
        row = TopKLogitsWarper(sampling.top_k)(none, row)
    if sampling.top_p < 1:
        row = TopPLogitsWarper(sampling.top_p)(none, row)
    if sampling.min_p > 0:
        row = MinPLogitsWarper(sampling.min_p)(none, row)
    return row[0].softmax(-1)


@dataclass
class Reference:
    """Greedy text without cache, and at each place how far the winner is ahead of the second."""

    ids: list[int]
    gaps: list[float]

    def check(self, ids: Sequence[int], note: str = "") -> None:
        """Equal, or different first at a tie (gap below TIE)."""
        for place, (mine, right) in enumerate(zip(ids, self.ids, strict=False)):
            if mine != right:
                assert self.gaps[place] < TIE, (
                    f"{note}: differs from the reference at place {place} ({mine} for {right}), "
                    f"where the winner is {self.gaps[place]:.2g} ahead"
                )
                return
        assert len(ids) == len(self.ids), f"{note}: {len(ids)} ids for the reference's {len(self.ids)}"


def reference(
    model: PreTrainedModel | Script, prompt: Sequence[int], n: int, sampling: Sampling = GREEDY
) -> Reference:
    """n greedy tokens, each from a recompute of the whole text."""
    text, gaps = list(prompt), []
    for _ in range(n):
        if isinstance(model, PreTrainedModel):
            logits = full_logits(model, text)[-1]
        else:
            logits = torch.tensor(list(model.law(tuple(text))))
        best = library_scores(logits, text, sampling).topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        text.append(int(best.indices[0]))
    return Reference(text[len(prompt) :], gaps)


def law_of_text(
    row: Callable[[tuple[int, ...]], Tensor], prompt: Sequence[int], k: int, sampling: Sampling
) -> dict[tuple[int, ...], float]:
    """Every text of k ids with its probability, by the library's law. `row(ids)`: logits behind ids."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(k):
        longer = {}
        for text, weight in texts.items():
            history = (*prompt, *text)
            for id, p in enumerate(library_law(row(history), history, sampling).tolist()):
                if p > 0:
                    longer[(*text, id)] = weight * p
        texts = longer
    return texts


def check_law(counts: Mapping[tuple[int, ...], int], law: Mapping[tuple[int, ...], float], note: str) -> None:
    """χ² of observed texts against their exact law; cells expected fewer than 5 times are pooled."""
    total = sum(counts.values())
    strange = set(counts) - set(law)
    assert not strange, f"{note}: texts of probability 0 came out: {sorted(strange)[:3]}"
    pairs = [(counts.get(text, 0), p * total) for text, p in law.items()]
    cells = [pair for pair in pairs if pair[1] >= 5]
    rare = [pair for pair in pairs if pair[1] < 5]
    if rare:
        cells.append((sum(seen for seen, _ in rare), sum(due for _, due in rare)))
    assert len(cells) > 1, f"{note}: one cell only, so nothing is tested"
    statistic = sum((seen - due) ** 2 / max(due, 1e-9) for seen, due in cells)
    degrees = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    chance = float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))
    assert chance > ALPHA, (
        f"{note}: χ² = {statistic:.1f} over {len(cells)} cells of {total} texts, p = {chance:.1e}; "
        f"a right engine would fail once in {1 / ALPHA:.0f} such tests"
    )


# -- the exact integral of verify ---------------------------------------------------------------------


@contextmanager
def uniforms(values: Sequence[float], point: float) -> Iterator[None]:
    """Within it, the vector of acceptance draws is `values` and the draw of `sample` is `point`."""

    def rand(*size: object, dtype: torch.dtype = torch.float32, **kwargs: object) -> Tensor:
        count = size[0]
        if isinstance(count, int):
            return torch.tensor(list(values)[:count], dtype=dtype)
        return torch.tensor(point, dtype=dtype)

    with mock.patch.object(torch, "rand", rand):
        yield


def _threshold(holds: Callable[[float], bool]) -> float:
    """The measure of {u in [0, 1): holds(u)}, for a condition that holds up to some u and not beyond."""
    low, high = 0.0, 1.0
    if not holds(0.0):
        return 0.0
    for _ in range(26):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return 1.0 if high == 1.0 else high


def as_law(law: Law | Tensor) -> Law:
    """A table [n, V] as laws over all ids."""
    return law if isinstance(law, Law) else Law(law)


def exact_verdict(
    p: Law | Tensor, q: Law | Tensor | None, drafted: Sequence[int]
) -> dict[tuple[int, int], float]:
    """The exact law of `verify`: (accepted, next id) → probability, its uniform draws integrated out.

    Black box but for two facts: each proposal has a draw of its own and is kept below a threshold; the place of
    the next id in its row of p does not decrease with its draw.
    """
    rng, n, own, other = torch.Generator(), len(drafted), as_law(p), None if q is None else as_law(q)
    entries = own.ids if own.ids is not None else torch.arange(own.p.shape[1]).expand_as(own.p)
    rows: list[list[int]] = entries.tolist()

    def verdict(u: Sequence[float], point: float) -> tuple[int, int]:
        with uniforms(u, point):
            accepted, following, *_ = verify(own, other, drafted, rng)
            return int(accepted), rows[int(accepted)].index(int(following))

    keep = [
        _threshold(lambda u, i=i: verdict([0.0] * i + [u] + [1.0] * (n - i - 1), 0.0)[0] > i)
        for i in range(n)
    ]
    law: dict[tuple[int, int], float] = {}
    reached = 1.0
    for accepted in range(n + 1):
        turned_down = reached * (1 - keep[accepted]) if accepted < n else reached
        if turned_down > 1e-7:
            # The largest draw below 1 is refused whenever anything is.
            u = [0.0] * accepted + [1 - 2**-24] * (n - accepted)
            below = [
                _threshold(lambda point, k=k, u=u: verdict(u, point)[1] <= k)
                for k in range(len(rows[accepted]) - 1)
            ] + [1.0]
            for id, (low, high) in zip(rows[accepted], itertools.pairwise([0.0, *below]), strict=True):
                law[accepted, id] = law.get((accepted, id), 0.0) + turned_down * (high - low)
        if accepted < n:
            reached *= keep[accepted]
    return law
