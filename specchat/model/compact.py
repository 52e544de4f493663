"""A decoder of our own for the Llama, SmolLM, Mistral and Qwen families: few operations, no repeated keys.

At 135 million weights the library's module spends as long on its own bookkeeping as on arithmetic. This one reads
merged matrices, writes keys and values into one buffer allocated up front, and takes positions from the length of
`ids`, so that forgetting is shortening a list. It is checked against the library's module logit by logit.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from specchat.decode.ids import Ids, listed, on
from specchat.model.compact_weights import Weights, supports, supports_module, take
from specchat.model.errors import check_ids
from specchat.model.graphs import Replayer, StaticForward, Tell
from specchat.model.linear import Precision, choose
from specchat.model.stack import Norm, Stack
from specchat.model.threads import Threads, agree

__all__ = ["CompactDecoder", "supports", "supports_module"]

READ_CHUNK = 256
"""Rows of a prompt per pass: large enough for full speed, small enough for the mask and the MLP's rows to stay small."""

CHECKED, CHECKED_ROWS = 160, (1, 3, 5, 7, 17)
"""Ids of a text and rows of the blocks behind it, by which numbers of threads are compared. What differs is torch's own
work; attention over more than a chunk is the same by construction (see `attention`)."""


class CompactDecoder:
    """The `Forward` of the algorithm. One conversation's cache, batch of one.

    Rows of a padded head beyond vocab are cut, entries that a shorter head lacks are -inf. `ids` grows only
    after a forward has succeeded; what a failed one wrote lies beyond them and is overwritten.
    """

    can_rollback = True

    def __init__(self, weights: Weights, vocab: int, capacity: int, name: str, note: str = "") -> None:
        self.weights = weights
        self.vocab = vocab
        self.capacity = capacity
        self.name = name
        """How matrices are multiplied, for people."""
        self.note = note
        """Why that is not what was asked for; empty if it is."""
        self.ids: list[int] = []
        self.keep_states = False
        self.states: Tensor | None = None
        self.device = weights.table.device
        self.weight_bytes = weights.nbytes
        """Bytes of the weights this decoder brought along (0 for one that shares another's)."""
        self._stack = Stack(weights, capacity)
        self._norm = Norm(weights.norm, weights.eps)
        self._static: StaticForward | None = None
        self.threads: Threads | None = None
        """Who chooses the number of CPU threads; None leaves it as it is."""

    @classmethod
    def from_module(
        cls,
        module: PreTrainedModel,
        vocab: int,
        capacity: int,
        precision: Precision = "auto",
        consume: bool = False,
    ) -> CompactDecoder:
        """Builds one from a loaded module; raises ValueError with the reason if it is of another kind.

        consume=True empties the module's matrices while packing them (see `compact_weights.take`).
        """
        reason = supports_module(module)
        if reason is not None:
            raise ValueError(f"This model needs its library class: {reason}.")
        parameter = module.model.embed_tokens.weight
        how = choose(precision, parameter.device, parameter.dtype)
        return cls(take(module, vocab, how, consume), vocab, capacity, how.name, how.note)

    def first_layers(self, count: int) -> CompactDecoder:
        """A shallow copy as a draft: embedding, first `count` blocks, final norm and head, all shared; own cache."""
        if not 1 <= count <= len(self.weights.layers):
            raise ValueError(
                f"This model has {len(self.weights.layers)} layers; {count} of them cannot be used."
            )
        weights = replace(self.weights, layers=self.weights.layers[:count], nbytes=0)
        shallow = CompactDecoder(weights, self.vocab, self.capacity, self.name, self.note)
        if self._static is not None:
            shallow.use_graphs(self._static.replayer, self._static.tell)
        return shallow

    def use_graphs(self, replayer: Replayer, tell: Tell) -> None:
        """From now on forwards of few rows are recorded and replayed (see `graphs`); `tell` hears if that fails."""
        self._stack.wipe(0, self.capacity)
        self._static = StaticForward(self, replayer, tell)

    # -- what the engine calls --------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, ids: Ids) -> Tensor:
        """Appends ids; float32 logits [len(ids), vocab]. Raises IdOutOfRange or ContextFull before any work."""
        ids = check_ids(ids, len(self.ids), self.capacity, self.weights.table.shape[0])
        found = self._static(ids, len(self.ids)) if self._static is not None else None
        if found is None:
            found = self._timed(ids) if self.threads is not None else self._fresh(ids)
        self._done(ids, found[0])
        return found[1]

    def _fresh(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """States [n, d] and logits [n, vocab] of ids behind what is cached."""
        states = self._normed(self._run(ids))
        return states, self._logits(states)

    def _timed(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """The same, with as many threads as `threads` chooses."""
        assert self.threads is not None
        self.threads.begin()
        started = time.perf_counter()
        found = self._fresh(ids)
        self.threads.learn(len(ids), time.perf_counter() - started)
        return found

    @torch.inference_mode()
    def agrees(self, threads: Threads) -> bool:
        """Whether both numbers of threads give the same bits here: reading a text, and blocks of some rows behind it."""
        assert not self.ids
        most = min(CHECKED, self.capacity // 2)
        ids = [(7 * n + 3) % self.vocab for n in range(most + max(CHECKED_ROWS))]

        def results() -> list[Tensor]:
            self.read(ids[: most // 4])
            self.read(ids[most // 4 : most])
            blocks = [ids[most : most + rows] for rows in CHECKED_ROWS if most + rows <= self.capacity]
            found = [self._fresh(block)[1] for block in blocks]
            self.reset()
            return found

        return agree(threads, results)

    @torch.inference_mode()
    def read(self, ids: Ids) -> None:
        """Appends ids in chunks, without the head."""
        ids = check_ids(ids, len(self.ids), self.capacity, self.weights.table.shape[0])
        for at in range(0, len(ids), READ_CHUNK):
            chunk = ids[at : at + READ_CHUNK]
            hidden = self._run(chunk)
            self._done(chunk, self._normed(hidden) if self.keep_states else None)

    def rollback(self, n: int) -> None:
        """Forgets the last n ids."""
        assert 0 <= n <= len(self.ids), "a rollback never reaches behind the start"
        if n:
            del self.ids[-n:]
            self._wipe(len(self.ids), n)

    def reset(self) -> None:
        """Forgets everything; the buffer stays."""
        self._wipe(0, len(self.ids))
        self.ids = []

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values at full length (a CPU commits them only as they are used)."""
        return self._stack.cache_bytes

    # -- one pass ---------------------------------------------------------------------------------

    def _run(self, ids: Ids) -> Tensor:
        """Hidden states [n, d] before the final norm; writes positions len(self.ids)… of the cache."""
        w = self.weights
        return self._stack(w.table[on(self.device, ids)].to(w.dtype), len(self.ids))

    def fixed(self, ids: Tensor, places: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """A pass for recording (see `Stack.fixed`): ids [n] to places [n] -> states [n, d], logits [n, vocab]."""
        w = self.weights
        rows = w.table.index_select(0, ids).to(w.dtype)
        states = self._normed(self._stack.fixed(rows, places, columns))
        return states, self._logits(states)

    def _wipe(self, first: int, count: int) -> None:
        """A recorded pass also touches what was forgotten, so a nan there would outlive the text that made it."""
        if self._static is not None and count:
            self._stack.wipe(first, first + count)

    def _normed(self, hidden: Tensor) -> Tensor:
        return self._norm(hidden)

    def _logits(self, states: Tensor) -> Tensor:
        """float32 [n, vocab] from hidden states behind the final norm."""
        logits = self.weights.head(states).float()
        missing = self.vocab - self.weights.head_rows
        return F.pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits

    def _done(self, ids: Ids, states: Tensor | None) -> None:
        """The forward has succeeded: its ids count, and with keep_states its states stay at their places."""
        if self.keep_states and states is not None:
            if self.states is None:
                self.states = states.new_empty((self.capacity, states.shape[-1]))
            self.states[len(self.ids) : len(self.ids) + len(states)] = states
        self.ids.extend(listed(ids))
