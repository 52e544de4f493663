"""Where training begins: the sizes of the head, its vocabulary, and a first guess in closed form.

The linear map that best gives the target's next state from its last one and the next embedding is found by least
squares in seconds; it alone is accepted about every third time, where training from noise needs several passes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from specchat.lab.distil.data import Corpus, Maker, vocabulary
from specchat.lab.distil.network import HeadNet
from specchat.lab.distil.train import Recipe, Say, Trainer, begun
from specchat.model.compact import CompactDecoder
from specchat.model.head import HeadShape
from specchat.model.head_file import read_head

FIT_TOKENS = 60_000
_RIDGE = 0.01
"""Added to the diagonal, in parts of its mean."""


def shape_for(target: CompactDecoder) -> HeadShape:
    """A head of the target's own proportions."""
    w = target.weights
    d = w.table.shape[1]
    inner = w.layers[0].gate_up(torch.zeros((1, d), dtype=w.dtype, device=target.device)).shape[1] // 2
    return HeadShape(d, w.heads, w.kv_heads, w.head_dim, inner, w.eps, tuple(w.frequencies.tolist()))


def begin(
    target: CompactDecoder,
    corpus: Corpus,
    recipe: Recipe,
    subset: Tensor | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[HeadNet, Maker, Tensor]:
    """(net, maker of batches, head rows [V, d] divided by the temperature).

    subset: the ids of a run that goes on, whose weights come from its checkpoint; None: measured, and the net begins
    with `weights`, or with a fitted first guess.
    """
    w = target.weights
    first = subset is None
    if subset is None:
        subset = vocabulary(corpus.train, recipe.vocab, recipe.top_k, recipe.temperature, w.head_rows)
    here = subset.to(target.device)
    rows = w.table[here] if w.tied else w.head.rows(here)
    maker = Maker(w.table.cpu(), subset, recipe.temperature, recipe.top_k)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        net = HeadNet(shape_for(target))
    if first and weights is not None:
        with torch.no_grad():
            for name, weight in net.named_parameters():
                weight.copy_(weights[name])
    elif first:
        fit(net, maker, corpus, w.norm.float().cpu())
    return net, maker, rows.float().cpu() / recipe.temperature


def trainer_at(
    target: CompactDecoder, corpus: Corpus, recipe: Recipe, folder: Path, say: Say, start: Path | None = None
) -> Trainer:
    """A trainer at the folder's checkpoint, else at the draft `start`, or at the beginning. The corpus is read here.

    Raises ValueError when there is too little to train on.
    """
    subset, shards = begun(folder) or (None, ())
    corpus.refresh(shards)
    if not corpus.held_out:
        raise ValueError(
            f"{corpus.tokens:,} tokens are too few: no conversation could be held out to judge the draft by. "
            "Raise --tokens."
        )
    weights = None if start is None else read_head(start, target)[1]
    net, maker, head = begin(target, corpus, recipe, subset, weights)
    trainer = Trainer(net, corpus, maker, head, recipe, folder, say)
    trainer.resume()
    return trainer


@torch.no_grad()
def fit(net: HeadNet, maker: Maker, corpus: Corpus, norm: Tensor, tokens: int = FIT_TOKENS) -> None:
    """Sets the final norm to the target's and `join` to the least-squares map onto the next state before it."""
    d = net.shape.hidden
    net.norm.copy_(norm)
    square, cross, n = torch.zeros(2 * d, 2 * d), torch.zeros(d, 2 * d), 0
    for chat in corpus.train:
        if n >= tokens:
            break
        batch = maker.batch([chat], 0.0, random.Random(0))
        x = net.joined(batch.pairs.states, batch.pairs.embeddings)
        goal = torch.nn.functional.rms_norm(batch.goals / norm, (d,), None, net.shape.eps)
        square.addmm_(x.T, x)
        cross.addmm_(goal.T, x)
        n += len(x)
    square += torch.eye(2 * d) * (_RIDGE * square.diagonal().mean())
    net.join.copy_(torch.linalg.solve(square, cross.T).T)
