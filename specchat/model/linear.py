"""One matrix, several ways to multiply by it: what the hardware is good at decides, and says why.

A decoder step reads every weight once, so on a CPU the bytes of a weight are the time of a step; and checking
a draft needs five rows to cost little more than one, which plain float32 does not give. Every way here treats
rows independently: the logits of a position do not depend on what else is in the block (beyond about 1e-5).
This file knows no model and no cache.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional as F

log = logging.getLogger(__name__)

Precision = Literal["auto", "float32", "float16", "bfloat16", "int8"]
"""What a person asks for. `auto`: float16 weights on a CPU, the module's own type on a GPU."""


class Linear(Protocol):
    """x [n, d] -> x Wᵀ + b [n, out]."""

    nbytes: int
    """Bytes that the weights take."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def rows(self, index: Tensor) -> Tensor:
        """The weights of some outputs, [len(index), d], as near to the originals as they are kept."""
        ...


class Plain:
    """torch's own multiplication, in the weights' type; shares the weights it is given."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.nbytes = _bytes(weight) + _bytes(bias)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def rows(self, index: Tensor) -> Tensor:
        return self.weight[index]


class OneDnn:
    """float32 weights in oneDNN's blocked layout: nearly flat in the number of rows, twice float16's bytes."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        weight = weight.float().contiguous()
        self.nbytes = _bytes(weight) + _bytes(bias)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        self.bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return cast(Tensor, out)

    def rows(self, index: Tensor) -> Tensor:
        return cast(Tensor, self.packed.to_dense())[index]


class _TimesHalf(torch.nn.Module):
    def __init__(self, packed: torch.ScriptObject) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)  # type: ignore[no-any-return]


class _TimesInt8(torch.nn.Module):
    def __init__(self, packed: torch.ScriptObject) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x, 1.0, 64, self.packed)  # type: ignore[no-any-return]


def _quick(product: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """The product with its packed weights inside: to hand those over from Python takes 6 µs, at 121 products a step.

    TorchScript is announced to end; where it is gone, a product takes that much longer.
    """
    return (
        cast(Callable[[Tensor], Tensor], torch.jit.script(product).forward) if _scripts() else product.forward
    )


@cache
def _scripts() -> bool:
    """Whether TorchScript runs such a product here, also after it has optimised it (at the second call)."""
    try:
        weight, x = torch.eye(16), torch.ones(1, 16)
        packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
        product = torch.jit.script(_TimesHalf(packed))
        return all(torch.equal(product(x), x) for _ in range(4))
    except Exception:
        log.info("products are called by way of Python", exc_info=True)
        return False


class HalfWeights:
    """FBGEMM: float16 weights, float32 activations and sums. Not a quantisation; KL to float32 is about 1e-6."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        _check_range(weight, torch.finfo(torch.float16).max)
        self.nbytes = weight.numel() * 2 + _bytes(bias)
        bias = None if bias is None else bias.float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)
        self.multiply = _quick(_TimesHalf(self.packed))

    def __call__(self, x: Tensor) -> Tensor:
        return self.multiply(x)

    def rows(self, index: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.quantized.linear_unpack_fp16(self.packed)[0])[index]


class Int8:
    """FBGEMM: int8 weights (a scale per output), activations as a rounded row plus its rounded remainder.

    AVX2 saturates with more than 7 bits of activation, and 7 bits are too coarse for small models. So each row is
    scaled by its own largest value to ±63 and sent twice: rounded, and what rounding lost, times 126. Integer sums
    are exact and scales are per row, hence rows are independent.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        weight = weight.float()
        _check_range(weight, torch.finfo(torch.float32).max)
        scale = weight.abs().amax(1).div_(127).clamp_(min=1e-12)
        self.nbytes = weight.numel() + weight.shape[0] * 8 + _bytes(bias)
        zeros = torch.zeros(weight.shape[0], dtype=torch.long)
        with warnings.catch_warnings():
            # torch announces the end of quantised tensors; this operator takes its weights in no other form yet.
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(weight, scale.double(), zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, None)
        self.bias = None if bias is None else bias.float()
        self.multiply = _quick(_TimesInt8(self.packed))

    def __call__(self, x: Tensor) -> Tensor:
        n, width = x.shape
        scale = torch.linalg.vector_norm(x, float("inf"), dim=-1, keepdim=True)
        scale.clamp_(min=1e-30).mul_(1 / 63)
        both = x.new_empty((2, n, width))
        torch.div(x, scale, out=both[1])
        torch.round(both[1], out=both[0])
        both[1].sub_(both[0]).mul_(126)
        out = self.multiply(both.view(2 * n, width))
        out = torch.add(out[:n], out[n:], alpha=1 / 126).mul_(scale)
        return out if self.bias is None else out.add_(self.bias)

    def rows(self, index: Tensor) -> Tensor:
        return cast(Tensor, torch.ops.quantized.linear_unpack(self.packed)[0].dequantize())[index]


class Brain:
    """bfloat16 weights, rows and results, oneDNN: twice float32's rate for many rows on a CPU that multiplies
    bfloat16 itself. Results keep 8 bits and a row's may depend on its neighbours: for writing text in bulk only."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        weight = weight.bfloat16().contiguous()
        self.nbytes = _bytes(weight) + _bytes(bias)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
        self.bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.packed, None, "none", [], "").float()
        return cast(Tensor, out if self.bias is None else out.add_(self.bias))

    def rows(self, index: Tensor) -> Tensor:
        return cast(Tensor, self.packed.to_dense())[index]


@dataclass(frozen=True, slots=True)
class Choice:
    """How matrices will be multiplied: `pack` makes one, `note` says why it is not what was asked for."""

    name: str
    pack: Callable[[Tensor, Tensor | None], Linear]
    shares: bool
    """True: `pack` keeps the tensor it is given. False: it makes its own copy, and the original may go."""
    dtype: torch.dtype
    """Type of activations and of the cache."""
    note: str = ""
    halves: bool = False
    """The embedding is kept in half precision too."""


def choose(precision: Precision, device: torch.device, dtype: torch.dtype = torch.float32) -> Choice:
    """The fastest sound way for this machine. dtype: the module's own, kept by `auto` on a GPU."""
    if device.type != "cpu":
        return _on_accelerator(precision, dtype)
    if precision == "float32":
        return _ONEDNN_FLOAT32 if has_onednn() else _PLAIN_FLOAT32
    if precision == "bfloat16":
        return _float16(
            "bfloat16 on a CPU rounds every result to 8 bits, or is slow; float16 weights are used instead."
        )
    if precision == "int8":
        if has_fbgemm():
            return Choice("int8 weights, FBGEMM", Int8, False, torch.float32, halves=True)
        return _float16("int8 needs FBGEMM (an x86 CPU with AVX2), which this build of PyTorch lacks here.")
    return _float16("")


def _on_accelerator(precision: Precision, dtype: torch.dtype) -> Choice:
    wanted = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}.get(
        precision, dtype
    )
    note = (
        "int8 is a CPU format here; the model's own type is used on the GPU." if precision == "int8" else ""
    )
    return Choice(str(wanted).removeprefix("torch."), Plain, True, wanted, note)


def _float16(note: str) -> Choice:
    if has_fbgemm():
        return Choice("float16 weights, FBGEMM", HalfWeights, False, torch.float32, note, halves=True)
    missing = "float16 weights need FBGEMM (an x86 CPU with AVX2), which this build of PyTorch lacks here"
    if has_onednn():
        return replace(_ONEDNN_FLOAT32, note=note or f"{missing}; oneDNN float32 is used.")
    note = note or f"{missing}; plain float32 is used."
    return Choice(_PLAIN_FLOAT32.name, Plain, True, torch.float32, note)


_PLAIN_FLOAT32 = Choice("float32", Plain, True, torch.float32)
_ONEDNN_FLOAT32 = Choice("float32, oneDNN", OneDnn, False, torch.float32)


def _check_range(weight: Tensor, most: float) -> None:
    """Packing would clip what does not fit, silently: another model. ValueError instead."""
    low, high = (float(end) for end in weight.detach().aminmax())
    if not (-most <= low <= high <= most):
        raise ValueError(
            f"This model has weights between {low:g} and {high:g}, which the chosen precision cannot hold "
            "(nan: its files are damaged); use --precision float32, or fetch its files again."
        )


def has_fbgemm() -> bool:
    """Whether FBGEMM's packed multiplications run on this machine."""
    return "fbgemm" in torch.backends.quantized.supported_engines and _works(HalfWeights) and _works(Int8)


def has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself; where it does not, float32 is faster."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported() and _works(Brain)


def has_onednn() -> bool:
    """Whether oneDNN's packed multiplication runs on this machine."""
    return torch.backends.mkldnn.is_available() and _works(OneDnn)


def _works(kind: Callable[[Tensor, Tensor | None], Linear]) -> bool:
    """Tries it once: a build may list an operator that its CPU refuses."""
    if kind not in _TRIED:
        weight = torch.eye(16)
        try:
            with torch.inference_mode():
                _TRIED[kind] = bool((kind(weight, None)(weight) - weight).abs().max() < 1e-2)
        except (RuntimeError, AttributeError, NotImplementedError):
            _TRIED[kind] = False
    return _TRIED[kind]


_TRIED: dict[Callable[[Tensor, Tensor | None], Linear], bool] = {}


def _bytes(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
