"""A draft head: guesses the target's next hidden state from its last one (EAGLE, Li et al. 2024).

The target's last hidden state already holds the text; the head joins it with the embedding of the id that was
drawn from it and runs one decoder block over those pairs. What comes out stands for the target's next state: the
target's own output head reads the law of the following id from it, and it serves as the next pair's state while
the target has not spoken. Embedding and output head are the target's, so only the block is stored; of the output
head it uses the rows of the ids it would ever propose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.decode.ids import Ids, on
from specchat.model.compact import CHECKED, CompactDecoder
from specchat.model.compact_weights import Layer, Weights
from specchat.model.errors import ContextFull
from specchat.model.graphs import Replayer, StaticFeed, Tell
from specchat.model.linear import Choice, choose
from specchat.model.stack import Norm, Stack
from specchat.model.threads import Threads, agree


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head. frequencies: rotary, in radians a place; inner: width of the MLP."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    eps: float
    frequencies: tuple[float, ...]

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Every stored weight by name, with its shape."""
        d, wide = self.hidden, self.heads * self.head_dim
        return {
            "state_norm": (d,),
            "embed_norm": (d,),
            "join": (d, 2 * d),
            "attn_norm": (d,),
            "qkv": (wide + 2 * self.kv_heads * self.head_dim, d),
            "out": (d, wide),
            "mlp_norm": (d,),
            "gate_up": (2 * self.inner, d),
            "down": (d, self.inner),
            "norm": (d,),
        }


class StateHead:
    """Pairs in, guessed states out; a cache of its own with one place a pair.

    Pair i is (the target's state of id i, id i+1). `feed` appends pairs, `rollback` forgets the last ones.
    Raises ContextFull when more pairs are fed than fit. Works where the target works, in its types.
    """

    name = "trained head"

    def __init__(
        self,
        shape: HeadShape,
        tensors: Mapping[str, Tensor],
        subset: Tensor,
        target: CompactDecoder,
        capacity: int | None = None,
    ) -> None:
        """tensors: those of `shape.matrices()`; subset: ids it may propose, ascending; the rest is the target's."""
        self.shape = shape
        self.capacity = capacity or target.capacity
        self.device = target.device
        self.subset = subset.to(self.device)
        """The id of each column of `logits`."""
        self.length = 0
        """Pairs in the cache."""
        self._table = target.weights.table
        how = choose("auto", self.device, target.weights.dtype)
        weights = {name: tensors[name].to(self.device, how.dtype) for name in shape.matrices()}
        self._state_norm = Norm(weights["state_norm"], shape.eps)
        self._embed_norm = Norm(weights["embed_norm"], shape.eps)
        self._norm = Norm(weights["norm"], shape.eps)
        self._join = how.pack(weights["join"], None)
        rows = self._table[self.subset] if target.weights.tied else target.weights.head.rows(self.subset)
        self._weights = _weights(shape, weights, self._table, rows.to(how.dtype), how)
        self.weight_bytes = self._weights.nbytes + self._join.nbytes
        """Bytes it adds to the target's: its block, and its copy of a part of the target's head."""
        self._stack = Stack(self._weights, self.capacity)
        self._static: StaticFeed | None = None

    def use_graphs(self, replayer: Replayer, tell: Tell) -> None:
        """From now on feeds of few pairs are recorded and replayed (see `graphs`); `tell` hears if that fails."""
        self._stack.wipe(0, self.capacity)
        self._static = StaticFeed(self, self._weights, replayer, tell)

    @torch.inference_mode()
    def feed(self, states: Tensor, ids: Ids) -> Tensor:
        """Appends the pairs (states[i], ids[i]), [n, d] and n; returns the states they lead to [n, d]."""
        if self.length + len(ids) > self.capacity:
            raise ContextFull(
                f"The draft head holds {self.capacity} tokens; {self.length + len(ids)} were fed."
            )
        outputs = self._static(states, ids, self.length) if self._static is not None else None
        if outputs is None:
            joined = self._joined(states, on(self.device, ids))
            outputs = self._norm(self._stack(joined, self.length))
        self.length += len(ids)
        return outputs

    @torch.inference_mode()
    def agrees(self, threads: Threads) -> bool:
        """As of a `CompactDecoder`."""
        assert not self.length
        most = min(CHECKED, self.capacity - 1)
        pairs = self._table[: most + 1].float()

        def results() -> list[Tensor]:
            outputs = [self.feed(pairs[:most], list(range(most))), self.feed(pairs[most:], [most])]
            self.reset()
            return [self.logits(each) for each in outputs]

        return agree(threads, results)

    def fixed(self, states: Tensor, ids: Tensor, places: Tensor, columns: int) -> Tensor:
        """A feed for recording (see `Stack.fixed`): states [n, d], ids [n] to places [n] -> states [n, d]."""
        return self._norm(self._stack.fixed(self._joined(states, ids), places, columns))

    def _joined(self, states: Tensor, ids: Tensor) -> Tensor:
        """Pairs as the block's inputs [n, d]."""
        w = self._weights
        embedded = self._table.index_select(0, ids).to(w.dtype)
        both = (self._state_norm(states.to(w.dtype)), self._embed_norm(embedded))
        return self._join(torch.cat(both, dim=-1))

    @torch.inference_mode()
    def logits(self, outputs: Tensor) -> Tensor:
        """float32 [n, len(subset)] from states that `feed` returned: one column for each id of `subset`."""
        return self._weights.head(outputs).float()

    def rollback(self, n: int) -> None:
        """Forgets the last n pairs."""
        assert 0 <= n <= self.length, "a rollback never reaches behind the start"
        self.length -= n
        self._wipe(self.length, n)

    def reset(self) -> None:
        """Forgets everything; the buffer stays."""
        self._wipe(0, self.length)
        self.length = 0

    def _wipe(self, first: int, count: int) -> None:
        """A recorded feed also touches what was forgotten, so a nan there would outlive the text that made it."""
        if self._static is not None and count:
            self._stack.wipe(first, first + count)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values at full length."""
        return self._stack.cache_bytes


def _weights(
    shape: HeadShape,
    tensors: Mapping[str, Tensor],
    table: Tensor,
    rows: Tensor,
    how: Choice,
) -> Weights:
    """One block, and the head's `rows`, in the form of a decoder's."""
    head = how.pack(rows, None)
    block = Layer(
        norm=tensors["attn_norm"],
        qkv=how.pack(tensors["qkv"], None),
        qk_norm=None,
        out=how.pack(tensors["out"], None),
        mlp_norm=tensors["mlp_norm"],
        gate_up=how.pack(tensors["gate_up"], None),
        down=how.pack(tensors["down"], None),
        rotary=True,
        window=None,
    )
    matrices = (block.qkv, block.out, block.gate_up, block.down, head)
    return Weights(
        table=table,
        layers=(block,),
        norm=tensors["norm"],
        head=head,
        head_rows=len(rows),
        tied=False,
        frequencies=torch.tensor(shape.frequencies, device=table.device),
        rotary_scale=1.0,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        eps=shape.eps,
        dtype=how.dtype,
        nbytes=sum(matrix.nbytes for matrix in matrices),
    )
