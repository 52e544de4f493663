"""The head under training: whole conversations at once, and several steps on its own states.

The same arithmetic as `model.head.StateHead`, which runs it one id at a time over a cache; a test holds the two
together. Pair j of a conversation is (the target's state of id j, the embedding of id j+1); its output stands for
the target's state of id j+1, so the target's own head reads from it the law of id j+2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specchat.model.head import HeadShape


@dataclass(frozen=True, slots=True)
class Packed:
    """Several conversations, one after the other: states [n, d] of ids j, embeddings [n, d] of ids j+1, lengths.

    opening [conversations, d]: embeddings of their first ids.
    """

    states: Tensor
    embeddings: Tensor
    opening: Tensor
    lengths: tuple[int, ...]

    def first(self, conversations: int) -> Packed:
        """Only so many of them."""
        lengths = self.lengths[:conversations]
        n = sum(lengths)
        return Packed(self.states[:n], self.embeddings[:n], self.opening[:conversations], lengths)


class Net(Protocol):
    """What `train.Trainer` and `optimiser.Optimiser` know of a draft under training."""

    def unroll(self, batch: Packed, steps: int, deep: int | None = None) -> list[Tensor]:
        """Outputs [n, d] for the output head, row j for the law of id j+2, of as many steps as differ (at most `steps`).

        deep: only that many conversations need go on after step 1.
        """
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What is trained, each by its name in a checkpoint."""
        ...

    def parts(self, name: str, matrix: Tensor) -> Sequence[Tensor]:
        """Views of the matrices that were stacked into this one, each with directions of its own."""
        ...

    def pace(self, name: str) -> float:
        """Share of the rate at which this weight learns."""
        ...


class HeadNet(nn.Module):
    """Trainable weights under the names that the exported file uses."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        d, both = shape.hidden, shape.heads + 2 * shape.kv_heads
        self.state_norm = nn.Parameter(torch.ones(d))
        self.embed_norm = nn.Parameter(torch.ones(d))
        self.join = _matrix(d, 2 * d)
        self.attn_norm = nn.Parameter(torch.ones(d))
        self.qkv = _matrix(both * shape.head_dim, d)
        self.out = _matrix(d, shape.heads * shape.head_dim)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = _matrix(2 * shape.inner, d)
        self.down = _matrix(d, shape.inner)
        self.norm = nn.Parameter(torch.ones(d))
        # The block begins as nothing: the first guess is the joined input alone.
        with torch.no_grad():
            self.out.zero_()
            self.down.zero_()

    def unroll(self, batch: Packed, steps: int, deep: int | None = None) -> list[Tensor]:
        """Outputs [n, d] of step 1 (true states), 2 (its own outputs as states), … `steps`.

        deep: only that many conversations go on after step 1, so later outputs have fewer rows (None: all do).
        In step k, pair j stands k-1 places behind the last true state: it sees true pairs up to j-k+1, and then
        its own pairs of steps 2 … k, as in drafting ("training-time test", Li et al. 2025, EAGLE-3).
        """
        turns = self._turns(batch.lengths)
        states = batch.states
        outputs: list[Tensor] = []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(steps):
            if step == 1 and deep is not None:
                batch = batch.first(deep)
                n = len(batch.states)
                turns, states = (turns[0][:n], turns[1][:n]), states[:n]
                keys, values = [keys[0][:n]], [values[0][:n]]
            x = F.linear(self.joined(states, batch.embeddings), self.join)
            q, k, v = self._queries(x, turns)
            keys.append(k)
            values.append(v)
            seen = _attend(q, keys, values, batch.lengths)
            x = x + F.linear(seen, self.out)
            gate, up = F.linear(self._rms(x, self.mlp_norm), self.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down)
            outputs.append(self._rms(x, self.norm))
            states = _shifted(outputs[-1], batch)
        return outputs

    def parts(self, name: str, matrix: Tensor) -> Sequence[Tensor]:
        """See Net."""
        shape = self.shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        found: Sequence[Tensor] = (matrix,)
        if name == "join":
            found = matrix.split(shape.hidden, dim=1)
        elif name == "qkv":
            found = matrix.split([wide, narrow, narrow])
        elif name == "gate_up":
            found = matrix.split(shape.inner)
        return found

    def pace(self, name: str) -> float:
        """See Net. `join` begins at the least-squares solution, the others at nothing."""
        return 0.5 if name == "join" else 1.0

    def joined(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """[n, 2d]: both inputs of the pairs, each normalised."""
        return torch.cat([self._rms(states, self.state_norm), self._rms(embeddings, self.embed_norm)], -1)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.shape.eps)

    def _queries(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """q [n, kv_heads, group, head_dim], k and v [n, kv_heads, head_dim]; q and k turned, q scaled."""
        s = self.shape
        qkv = F.linear(self._rms(x, self.attn_norm), self.qkv).view(len(x), -1, s.head_dim)
        both = s.heads + s.kv_heads
        real, imaginary = qkv[:, :both].chunk(2, -1)
        cos, sin = turns
        qk = torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], -1)
        q = qk[:, : s.heads].view(len(x), s.kv_heads, -1, s.head_dim) * s.head_dim**-0.5
        return q, qk[:, s.heads :], qkv[:, both:]

    def _turns(self, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        frequencies = torch.tensor(self.shape.frequencies)
        places = torch.cat([torch.arange(n) for n in lengths]).float()
        angles = (places[:, None] * frequencies)[:, None]
        return angles.cos(), angles.sin()


def _matrix(out: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(out, width) * width**-0.5)


def _shifted(outputs: Tensor, batch: Packed) -> Tensor:
    """What the pair before gave, as the state of each pair; a conversation's first pair keeps its true state."""
    parts = []
    for out, state in zip(outputs.split(batch.lengths), batch.states.split(batch.lengths), strict=True):
        parts += [state[:1], out[:-1]]
    return torch.cat(parts)


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor], lengths: Sequence[int]) -> Tensor:
    """[n, heads · head_dim]; keys and values: one [n, kv_heads, head_dim] a step so far."""
    split_keys = [k.split(lengths) for k in keys]
    split_values = [v.split(lengths) for v in values]
    parts = []
    for c, query in enumerate(q.split(lengths)):
        parts.append(_attend_one(query, [k[c] for k in split_keys], [v[c] for v in split_values]))
    return torch.cat(parts)


def _attend_one(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    n, kv_heads, group, width = q.shape
    back = len(keys) - 1
    q = q.transpose(0, 1)
    first_keys, first_values = keys[0].transpose(0, 1), values[0].transpose(0, 1)
    scores = (q.reshape(kv_heads, n * group, width) @ first_keys.mT).view(kv_heads, n, group, n)
    places = torch.arange(n)
    hidden = places[None, :] > places[:, None] - back
    # A pair too near the beginning for this many own steps sees at least the first pair.
    hidden[:, 0] = False
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    own = []
    for i in range(1, back + 1):
        own.append(
            (
                _later(keys[i], back - i).transpose(0, 1)[:, :, None],
                _later(values[i], back - i).transpose(0, 1),
            )
        )
    extra = [(q * k).sum(-1, keepdim=True) for k, _ in own]
    weights = torch.cat([scores, *extra], -1).softmax(-1)
    seen = (weights[..., :n].reshape(kv_heads, n * group, n) @ first_values).view(kv_heads, n, group, width)
    for i, (_, v) in enumerate(own):
        seen = seen + weights[..., n + i, None] * v[:, :, None]
    return seen.permute(1, 0, 2, 3).reshape(n, -1)


def _later(x: Tensor, places: int) -> Tensor:
    """Row j becomes what row j - places was; the first rows stay."""
    return x if places == 0 else torch.cat([x[:places], x[:-places]])
