"""The weights of a compact decoder: taken from a Hugging Face module, merged, packed, never held twice.

Which modules qualify is decided from their configuration and their parts, with a reason for every refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from specchat.model.linear import Choice, Linear

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""`model_type`s built of the same parts: root-mean-square norm, rotary positions, grouped queries, gated MLP."""
ROTARY = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary scaling whose frequencies do not change with the length of the text."""


class _Norm(Protocol):
    weight: nn.Parameter


class _Attention(Protocol):
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear


class _Mlp(Protocol):
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear


class _Block(Protocol):
    """The parts that a block of every family here has, under the library's names."""

    self_attn: _Attention
    mlp: _Mlp
    input_layernorm: _Norm
    post_attention_layernorm: _Norm


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. qk_norm [heads + kv_heads, head_dim] scales queries and keys (Qwen3), else None."""

    norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    rotary: bool
    window: int | None


@dataclass(frozen=True, slots=True)
class Weights:
    """All that a decoder reads. Several decoders may share one."""

    table: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    head_rows: int
    tied: bool
    """The output head's weights are the embedding's."""
    frequencies: Tensor
    rotary_scale: float
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    dtype: torch.dtype
    nbytes: int


def supports(config: PreTrainedConfig) -> str | None:
    """None if a model of this configuration can run here, else the reason why not."""
    kind = getattr(config, "model_type", "")
    if kind not in FAMILIES:
        return f"the architecture {kind!r} is not one of {', '.join(FAMILIES)}"
    if config.hidden_act != "silu":
        return f"its MLP uses {config.hidden_act!r}, not silu"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ROTARY:
        return f"its rotary scaling {rope.get('rope_type')!r} changes with the length of the text"
    layer_types = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if layer_types:
        return f"it has layers of type {', '.join(sorted(layer_types))}"
    return None


def supports_module(module: PreTrainedModel) -> str | None:
    """As `supports`, for a loaded module: also plain matrices, all on one device."""
    reason = supports(module.config)
    if reason is not None:
        return reason
    for name, part in module.named_modules():
        if name.endswith(("_proj", "lm_head")) and type(part) is not nn.Linear:
            return f"{name} is a {type(part).__name__}, not a plain matrix"
    devices = {p.device for p in module.parameters()}
    if len(devices) != 1 or torch.device("meta") in devices:
        return "its weights are spread over several devices or offloaded"
    width = module.model.rotary_emb.inv_freq.numel() * 2
    if width != _head_dim(module):
        return "only a part of each head is rotated"
    return None


@torch.no_grad()
def take(module: PreTrainedModel, vocab: int, how: Choice, consume: bool) -> Weights:
    """Merges and packs the module's matrices.

    Where `how` shares tensors (plain float32, a GPU) the module's parameters become views of the merged ones, so
    it goes on working and nothing is held twice. Otherwise they are copied; with consume=True the module's own are
    emptied one by one, so that the peak stays near one copy and the module is unusable afterwards.
    """
    module.eval()
    if how.shares and module.dtype != how.dtype:
        module.to(how.dtype)
    merge = _Merger(how, consume)
    body, config = module.model, module.config
    table = body.embed_tokens.weight
    tied = module.lm_head.weight.data_ptr() == table.data_ptr()
    # The head first: a consumed tied table must still be whole.
    rows = min(vocab, module.lm_head.weight.shape[0])
    head = how.pack(module.lm_head.weight.detach()[:rows], module.lm_head.bias)
    # Looked up one row at a time, so its type costs nothing; half as many bytes do matter.
    table = _half(table) if how.halves else table.detach()
    layers = tuple(_layer(block, config, merge) for block in body.layers)
    if consume and not how.shares:
        _empty(module.lm_head.weight)
        _empty(body.embed_tokens.weight)
    norm = body.norm.weight.detach()
    shared_head = tied and how.shares
    nbytes = sum(layer_bytes(layer) for layer in layers) + (0 if shared_head else head.nbytes)
    return Weights(
        table=table,
        layers=layers,
        norm=norm,
        head=head,
        head_rows=rows,
        tied=tied,
        frequencies=body.rotary_emb.inv_freq.detach().float(),
        rotary_scale=float(body.rotary_emb.attention_scaling),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(module),
        eps=config.rms_norm_eps,
        dtype=how.dtype,
        nbytes=nbytes + table.numel() * table.element_size() + norm.numel() * norm.element_size(),
    )


def _layer(block: _Block, config: PreTrainedConfig, merge: _Merger) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    window = getattr(attention, "sliding_window", None)
    if config.model_type == "mistral":
        window = config.sliding_window
    return Layer(
        norm=block.input_layernorm.weight.detach(),
        qkv=merge(attention.q_proj, attention.k_proj, attention.v_proj),
        qk_norm=_qk_norm(getattr(attention, "q_norm", None), getattr(attention, "k_norm", None), config),
        out=merge(attention.o_proj),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        gate_up=merge(mlp.gate_proj, mlp.up_proj),
        down=merge(mlp.down_proj),
        rotary=bool(getattr(attention, "use_rope", True)),
        window=window,
    )


def _qk_norm(q: _Norm | None, k: _Norm | None, config: PreTrainedConfig) -> Tensor | None:
    """One scale for each head of queries, then of keys: [heads + kv_heads, head_dim]."""
    if q is None or k is None:
        return None
    queries = q.weight.detach().expand(config.num_attention_heads, -1)
    return torch.cat([queries, k.weight.detach().expand(config.num_key_value_heads, -1)])


class _Merger:
    """Stacks matrices that read the same input into one, and packs it."""

    def __init__(self, how: Choice, consume: bool) -> None:
        self.how = how
        self.consume = consume

    def __call__(self, *parts: nn.Linear) -> Linear:
        weight = self._stack([part.weight for part in parts])
        biases = [part.bias for part in parts if part.bias is not None]
        packed = self.how.pack(weight, self._stack(biases) if biases else None)
        if self.consume and not self.how.shares:
            for part in parts:
                _empty(part.weight)
        return packed

    def _stack(self, tensors: Sequence[Tensor]) -> Tensor:
        if len(tensors) == 1:
            return tensors[0].detach()
        merged = torch.cat([tensor.detach() for tensor in tensors])
        if self.how.shares:
            for tensor, view in zip(tensors, merged.split([t.shape[0] for t in tensors]), strict=True):
                tensor.data = view
        return merged


def layer_bytes(layer: Layer) -> int:
    """Bytes of one block, all of which a step reads."""
    norms = (layer.norm, layer.mlp_norm, layer.qk_norm)
    return sum(part.nbytes for part in (layer.qkv, layer.out, layer.gate_up, layer.down)) + sum(
        norm.numel() * norm.element_size() for norm in norms if norm is not None
    )


def _half(table: Tensor) -> Tensor:
    """float16 if nothing overflows there (a checkpoint in bfloat16 might), else bfloat16."""
    half = table.detach().half()
    return half if bool(half.isfinite().all()) else table.detach().bfloat16()


def _empty(parameter: Tensor) -> None:
    parameter.data = parameter.data.new_empty(0)


def _head_dim(module: PreTrainedModel) -> int:
    config = module.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
