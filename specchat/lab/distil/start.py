"""Where training begins: the sizes of the draft, its vocabulary, and a first guess in closed form.

The linear map that best gives the target's next state from its last one and the next embedding is found by least
squares in seconds; it alone is accepted about every third time, where training from noise needs several passes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from specchat.lab.distil.data import Corpus, Maker, vocabulary
from specchat.lab.distil.layers import LayersNet
from specchat.lab.distil.network import HeadNet, Net
from specchat.lab.distil.short import read_short, shorten
from specchat.lab.distil.train import Judge, Recipe, Say, Trainer, begun
from specchat.model.compact import CompactDecoder
from specchat.model.head import HeadShape
from specchat.model.head_file import read_head
from specchat.model.loading import load_model

FIT_TOKENS = 60_000
_RIDGE = 0.01
"""Added to the diagonal, in parts of its mean."""


def shape_for(target: CompactDecoder) -> HeadShape:
    """A head of the target's own proportions."""
    w = target.weights
    d = w.table.shape[1]
    inner = w.layers[0].gate_up(torch.zeros((1, d), dtype=w.dtype, device=target.device)).shape[1] // 2
    return HeadShape(d, w.heads, w.kv_heads, w.head_dim, inner, w.eps, tuple(w.frequencies.tolist()))


def trainer_at(
    target: CompactDecoder,
    corpus: Corpus,
    recipe: Recipe,
    folder: Path,
    say: Say,
    start: Path | None = None,
    source: Path | None = None,
) -> Trainer:
    """A trainer at the folder's checkpoint, else at the draft `start`, or at the beginning. The corpus is read here.

    source: the target's checkpoint, for a draft of its own first blocks; None: for a head. Raises ValueError when
    there is too little to train on, PairMismatch when `start` was made for another target.
    """
    checkpoint = begun(folder)
    corpus.refresh(checkpoint[1] if checkpoint else ())
    if not corpus.held_out:
        raise ValueError(
            f"{corpus.tokens:,} tokens are too few: no conversation could be held out to judge the draft by. "
            "Raise --tokens."
        )
    w = target.weights
    subset = (
        checkpoint[0]
        if checkpoint
        else vocabulary(corpus.train, recipe.vocab, recipe.top_k, recipe.temperature, w.head_rows)
    )
    maker = Maker(w.table.cpu(), subset, recipe.temperature, recipe.top_k)
    here = subset.to(target.device)
    head = (w.table[here] if w.tied else w.head.rows(here)).float().cpu() / recipe.temperature
    net: Net
    if source is None:
        net, judge = _head_net(target, recipe, start), Judge(maker, lambda outputs: outputs @ head.T)
        if start is None and checkpoint is None:
            fit(net, maker, corpus, w.norm.float().cpu())
    else:
        net, judge = layers_net(source, start), whole(target, recipe)
        if start is None and checkpoint is None:
            fit_norm(net, maker, corpus)
    trainer = Trainer(net, corpus, maker, head, judge, recipe, folder, say)
    trainer.resume()
    return trainer


def _head_net(target: CompactDecoder, recipe: Recipe, start: Path | None) -> HeadNet:
    """A head of the target's proportions, with the weights of `start` if there is one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        net = HeadNet(shape_for(target))
    if start is not None:
        _set(net, read_head(start, target)[1])
    return net


def layers_net(source: Path, start: Path | None = None) -> LayersNet:
    """The first blocks of the checkpoint `source`, with the weights of `start` if there is one."""
    with TemporaryDirectory(prefix="specchat-") as folder:
        shorten(source, Path(folder))
        net = LayersNet(load_model(folder, dtype="float32", device="cpu").module)
    if start is not None:
        _set(net, read_short(start, source))
    return net


@torch.no_grad()
def _set(net: Net, weights: Mapping[str, Tensor]) -> None:
    for name, weight in net.named_parameters():
        weight.copy_(weights[name])


def whole(target: CompactDecoder, recipe: Recipe) -> Judge:
    """For a draft with the target's whole output head, which multiplies as in drafting."""
    w = target.weights
    everything = Maker(w.table.cpu(), torch.arange(w.head_rows), recipe.temperature, recipe.top_k)

    def logits(outputs: Tensor) -> Tensor:
        return w.head(outputs.to(target.device, w.dtype)).float().cpu() / recipe.temperature

    return Judge(everything, logits)


@torch.no_grad()
def fit_norm(net: LayersNet, maker: Maker, corpus: Corpus, tokens: int = 20_000) -> None:
    """Sets the final norm to the least-squares scale, place by place, onto the target's last states.

    Its own would take half-read states for finished ones, and be sure of nonsense.
    """
    net.norm.fill_(1.0)
    square, cross, n = torch.zeros_like(net.norm), torch.zeros_like(net.norm), 0
    for chat in corpus.train:
        if n >= tokens:
            break
        batch = maker.batch([chat], 0.0, random.Random(0))
        plain = net.unroll(batch.pairs, 1)[0]
        square += plain.square().sum(0)
        cross += (plain * batch.goals).sum(0)
        n += len(plain)
    net.norm.copy_(cross / square)


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
