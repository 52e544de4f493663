from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specchat.model import linear
from specchat.model.linear import Brain, HalfWeights, Int8, OneDnn, Plain, choose

CPU = torch.device("cpu")
TOLERANCE = {Plain: 1e-5, OneDnn: 1e-5, HalfWeights: 1e-3, Int8: 4e-2}
HERE = [
    pytest.param(kind, id=kind.__name__, marks=pytest.mark.skipif(not runs, reason="not on this machine"))
    for kind, runs in [
        (Plain, True),
        (OneDnn, linear.has_onednn()),
        (HalfWeights, linear.has_fbgemm()),
        (Int8, linear.has_fbgemm()),
    ]
]


def matrices(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    weight = torch.randn(200, 96, generator=rng) / 96**0.5
    return torch.randn(9, 96, generator=rng), weight, torch.randn(200, generator=rng)


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_is_the_exact_one_within_the_formats_rounding(kind, with_bias):
    x, weight, bias = matrices()
    got = kind(weight, bias if with_bias else None)(x)
    exact = (x.double() @ weight.double().T + (bias.double() if with_bias else 0)).float()
    assert got.dtype == torch.float32
    assert (got - exact).abs().max() < TOLERANCE[kind]


@pytest.mark.parametrize("kind", HERE)
def test_a_row_does_not_depend_on_the_rows_beside_it(kind):
    x, weight, _ = matrices()
    x[3] *= 1000  # a loud neighbour must not coarsen the others
    multiply = kind(weight, None)
    alone = torch.cat([multiply(row[None]) for row in x])
    assert ((multiply(x) - alone).abs().amax(1) <= 2e-6 * alone.abs().amax(1).clamp(min=1)).all()


@pytest.mark.skipif(not linear.has_fbgemm(), reason="not on this machine")
def test_int8_survives_rows_and_outputs_of_zeros():
    weight = torch.randn(16, 8)
    weight[2] = 0
    out = Int8(weight, None)(torch.zeros(2, 8))
    assert out.isfinite().all()
    assert (out == 0).all()


def test_packed_formats_say_how_many_bytes_they_take():
    _, weight, bias = matrices()
    assert Plain(weight, bias).nbytes == 200 * 97 * 4
    if linear.has_fbgemm():
        assert HalfWeights(weight).nbytes == 200 * 96 * 2
        assert Int8(weight).nbytes < 200 * 96 * 1.2


def test_a_cpu_gets_float16_weights_unless_told_otherwise():
    if linear.has_fbgemm():
        assert choose("auto", CPU).pack is HalfWeights
        assert choose("int8", CPU).pack is Int8
    assert choose("float32", CPU).pack is (OneDnn if linear.has_onednn() else Plain)
    assert choose("float32", CPU).note == ""


def test_a_machine_without_fbgemm_falls_back_and_says_why(monkeypatch):
    monkeypatch.setattr(linear, "has_fbgemm", lambda: False)
    monkeypatch.setattr(linear, "has_onednn", lambda: True)
    assert choose("auto", CPU).pack is OneDnn
    assert "FBGEMM" in choose("auto", CPU).note
    assert "int8" in choose("int8", CPU).note
    monkeypatch.setattr(linear, "has_onednn", lambda: False)
    assert choose("float16", CPU).pack is Plain
    assert "FBGEMM" in choose("float16", CPU).note


def test_a_gpu_keeps_the_models_own_type_unless_told_otherwise():
    gpu = torch.device("cuda")
    assert choose("auto", gpu, torch.bfloat16).dtype == torch.bfloat16
    assert choose("float32", gpu, torch.bfloat16).dtype == torch.float32
    assert "int8" in choose("int8", gpu, torch.bfloat16).note
    assert choose("auto", gpu, torch.bfloat16).shares


@pytest.mark.skipif(not linear.has_onednn(), reason="not on this machine")
def test_bfloat16_in_bulk_keeps_eight_bits_and_is_never_what_a_reply_is_computed_with():
    x, weight, bias = matrices()
    got = Brain(weight, bias)(x)
    assert got.dtype == torch.float32
    assert (got - (x @ weight.T + bias)).abs().max() < 4e-2
    index = torch.tensor([5, 0])
    assert torch.equal(Brain(weight).rows(index), weight[index].bfloat16())
    for precision in ("auto", "float32", "float16", "bfloat16", "int8"):
        assert choose(precision, CPU).pack is not Brain


@pytest.mark.skipif(not linear.has_fbgemm(), reason="not on this machine")
@pytest.mark.parametrize("kind", [HalfWeights, Int8])
def test_a_product_is_the_same_where_torchscript_is_gone(kind, monkeypatch):
    x, weight, bias = matrices()
    scripted = kind(weight, bias)
    for rows in (1, 9, 3, 1):  # it is optimised while it is used
        scripted(x[:rows])

    there = linear._scripts()

    def gone(*_):
        raise RuntimeError("torch.jit.script is not supported any more")

    monkeypatch.setattr(torch.jit, "script", gone)
    linear._scripts.cache_clear()
    try:
        plain = kind(weight, bias)
    finally:
        linear._scripts.cache_clear()
    assert (type(plain.multiply) is not type(scripted.multiply)) == there
    for rows in (1, 9):
        assert torch.equal(scripted(x[:rows]), plain(x[:rows]))
