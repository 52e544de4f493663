"""A two-block draft under training: the target's own first blocks and final norm, as the library's module.

It reads ids only, so whole conversations pass through it once and any place is as good as another: what it says of
an id does not depend on how far behind the target's last word it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

from specchat.lab.distil.network import Packed

_APART = "specchat_apart"


class LayersNet(nn.Module):
    """Blocks and norm under the names that the checkpoint's file uses; embedding and output head are the target's."""

    def __init__(self, module: PreTrainedModel) -> None:
        """module: the short model in float32; its embedding and its head are given up."""
        super().__init__()
        module.set_attn_implementation(_APART)
        self.model = module.model
        self.model.embed_tokens = nn.Identity()
        self._size = {name: _size(weight.detach()) for name, weight in self.named_parameters()}

    @property
    def norm(self) -> nn.Parameter:
        """The final norm's scale."""
        scale = self.model.norm.weight
        assert isinstance(scale, nn.Parameter)
        return scale

    def unroll(self, batch: Packed, steps: int, deep: int | None = None) -> list[Tensor]:
        """See Net: one step, whatever is asked for."""
        lengths = [n + 1 for n in batch.lengths]
        each = zip(batch.opening.split(1), batch.embeddings.split(batch.lengths), strict=True)
        x = torch.cat([part for pair in each for part in pair])[None]
        states = self.model(
            inputs_embeds=x,
            position_ids=torch.cat([torch.arange(n) for n in lengths])[None],
            use_cache=False,
            cu_seq_lens_q=torch.tensor([0, *accumulate(lengths)]),
        ).last_hidden_state[0]
        return [torch.cat([own[1:] for own in states.split(lengths)])]

    def parts(self, name: str, matrix: Tensor) -> Sequence[Tensor]:
        """See Net. Nothing is stacked."""
        return (matrix,)

    def pace(self, name: str) -> float:
        """See Net. These weights have a size already: rates are in parts of it."""
        return self._size[name]


def _size(weight: Tensor) -> float:
    """What a singular value of the matrix is, or a number of the vector, in the root mean square."""
    size: float = weight.norm().item() / min(weight.shape) ** 0.5
    return max(size, 1e-3)


def _apart(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float, cu_seq_lens_q: Tensor, sliding_window: int | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of packed conversations, each to itself: [1, heads, n, head_dim] -> [1, n, heads, head_dim]."""
    lengths = cu_seq_lens_q.diff().tolist()
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    parts = []
    for q, k, v in zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True):
        n = q.shape[2]
        near = None if sliding_window is None or n <= sliding_window else _near(n, sliding_window)
        parts.append(
            F.scaled_dot_product_attention(q, k, v, attn_mask=near, is_causal=near is None, scale=scaling)
        )
    return torch.cat(parts, 2).transpose(1, 2), None


def _near(n: int, window: int) -> Tensor:
    """[n, n]: whether a row sees a column, the last `window` places up to its own."""
    back = torch.arange(n)[:, None] - torch.arange(n)
    return (back >= 0) & (back < window)


AttentionInterface.register(_APART, _apart)
