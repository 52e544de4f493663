"""A Hugging Face causal language model as the engine sees it: ids in, float32 logits out, O(1) rollback.

The library's own dynamic cache copies itself at every token and cannot forget a sliding window's past.
Here each attention layer writes into a buffer allocated once, as long as the context in use; forgetting is
lowering a length. Sliding windows are a matter of the mask, so they roll back like everything else.
Which layers a model has is asked of the cache the library would build for it, never of its name.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from specchat.decode.ids import Ids, listed, on
from specchat.model.errors import check_ids

_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)


class BufferLayer(CacheLayerMixin):
    """Keys and values [1, heads, capacity, head_dim] of one layer, filled up to `length`."""

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        heads = key_states.shape[1]
        # empty, not zeros: pages of the buffer are taken from the system only once they are written.
        self.keys = key_states.new_empty((1, heads, self.capacity, key_states.shape[-1]))
        self.values = value_states.new_empty((1, heads, self.capacity, value_states.shape[-1]))
        self.device = key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Writes the new states behind the old ones; returns views of everything up to them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity


def buffer_cache(model: PreTrainedModel, capacity: int) -> Cache | None:
    """A preallocated cache for this model, or None when some layer's state cannot be rolled back."""
    layers: list[CacheLayerMixin | DummyLayer] = []
    for layer in DynamicCache(config=model.config).layers:
        if type(layer) in _ATTENTION:
            layers.append(BufferLayer(capacity))
        elif type(layer) is DummyLayer:
            layers.append(layer)
        else:
            return None
    return Cache(layers=layers) if layers else None


class Runner:
    """The `Forward` of the algorithm over a Hugging Face module. One conversation's cache, batch of one.

    vocab is the common width of logits (the tokenizer's length): rows of a padded head beyond it are
    cut, entries a shorter head lacks are -inf. `ids` grows only after a forward has succeeded.
    """

    def __init__(self, model: PreTrainedModel, vocab: int, capacity: int) -> None:
        self.model = model
        self.vocab = vocab
        self.capacity = capacity
        self.keep_states = False
        self.states: Tensor | None = None
        self.ids: list[int] = []
        self.device = model.get_input_embeddings().weight.device
        self.rows = model.get_input_embeddings().weight.shape[0]
        cache = buffer_cache(model, capacity)
        self.can_rollback = cache is not None
        self._buffer = cache
        self._state: Cache | None = None

    # -- what the engine calls --------------------------------------------------------------------

    def forward(self, ids: Ids) -> Tensor:
        """Appends ids; float32 logits [len(ids), vocab].

        Raises IdOutOfRange or ContextFull before anything is computed.
        """
        if self._in_one_go:
            return self._run(ids, len(ids))
        return torch.cat([self._run(ids[at : at + 1], 1) for at in range(len(ids))])

    def read(self, ids: Ids) -> None:
        """Appends ids; the head is applied to one row only, and its result dropped."""
        if self._in_one_go:
            self._run(ids, 1)
        else:
            self.forward(ids)

    def rollback(self, n: int) -> None:
        """Forgets the last n ids."""
        assert 0 <= n <= len(self.ids), "a rollback never reaches behind the start"
        if n == 0:
            return
        assert self._buffer is not None, "this model's state cannot be rolled back"
        for layer in self._buffer.layers:
            if isinstance(layer, BufferLayer):
                layer.length -= n
        del self.ids[-n:]

    def reset(self) -> None:
        """Forgets everything; the buffers stay."""
        if self._buffer is not None:
            for layer in self._buffer.layers:
                if isinstance(layer, BufferLayer):
                    layer.length = 0
        self._state = None
        self.ids = []

    # -- how ----------------------------------------------------------------------------------------

    @property
    def _in_one_go(self) -> bool:
        """Recurrent classes take many ids only from an empty state; later ones go in one at a time (Mamba ignores
        the state otherwise)."""
        return self.can_rollback or not self.ids

    @torch.inference_mode()
    def _run(self, ids: Ids, wanted: int) -> Tensor:
        ids = check_ids(ids, len(self.ids), self.capacity, self.rows)
        try:
            out = self.model(
                input_ids=on(self.device, ids)[None],
                cache=self._cache(),
                use_cache=True,
                logits_to_keep=wanted,
                output_hidden_states=self.keep_states,
            )
        except BaseException:
            # Some layers may have been written and others not: put every length back to what `ids` says.
            self._restore()
            raise
        if self.keep_states:
            self._store(out.hidden_states[-1][0])
        self.ids.extend(listed(ids))
        return self._fit(out.logits[0].float())

    def _cache(self) -> Cache:
        """The preallocated cache, or the library's own for a state that cannot be rolled back."""
        if self._buffer is not None:
            return self._buffer
        if self._state is None:
            self._state = DynamicCache(config=self.model.config)
        return self._state

    def _store(self, states: Tensor) -> None:
        """Keeps the states of the ids just fed, at their places."""
        if self.states is None:
            self.states = states.new_empty((self.capacity, states.shape[-1]))
        self.states[len(self.ids) : len(self.ids) + len(states)] = states

    def _fit(self, logits: Tensor) -> Tensor:
        """Cuts a padded head to `vocab`, or fills up a short one with -inf."""
        width = logits.shape[-1]
        if width >= self.vocab:
            return logits[:, : self.vocab]
        return torch.nn.functional.pad(logits, (0, self.vocab - width), value=float("-inf"))

    def _restore(self) -> None:
        if self._buffer is None:
            self.reset()
            return
        for layer in self._buffer.layers:
            if isinstance(layer, BufferLayer):
                layer.length = len(self.ids)

    # -- what it costs ----------------------------------------------------------------------------

    @property
    def cache_bytes(self) -> int:
        """Bytes of the buffers (allocated at the first forward; 0 before it)."""
        layers = [] if self._buffer is None else self._buffer.layers
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in layers
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if tensor is not None
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters, a tensor shared by several layers counted once."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())
