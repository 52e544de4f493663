"""The compact decoder against the library's own module, logit by logit, on tiny random checkpoints."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specchat.model import linear
from specchat.model.compact import READ_CHUNK, CompactDecoder, supports, supports_module
from specchat.model.errors import ContextFull, IdOutOfRange

VOCAB = 150
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, dict[str, object]] = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "llama biases": {"attention_bias": True, "mlp_bias": True},
    "llama head_dim": {"head_dim": 12},
    "llama one query a key": {"num_key_value_heads": 6},
    "llama linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "llama llama3": {"rope_parameters": LLAMA3},
    "llama yarn": {"rope_parameters": YARN},
    "mistral": {"sliding_window": 9, "head_dim": 8},
    "mistral no window": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen2 some windows": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
    "smollm3": {"no_rope_layer_interval": 2, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0},
}


def module(case: str = "llama", **more: object) -> PreTrainedModel:
    config = AutoConfig.for_model(case.split()[0], **{**BASE, **CASES[case], **more})
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            # Norms and biases too: left at 1 and 0, a forgotten one would go unnoticed.
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
    return model


def some_ids(n: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def reference(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def divergence(p: torch.Tensor, q: torch.Tensor) -> float:
    """Mean KL(p || q) in nats of two blocks of logits."""
    p, q = p.log_softmax(-1), q.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def build(case: str = "llama", precision: linear.Precision = "float32", capacity: int = 96, **more: object):
    model = module(case, **more)
    return model, CompactDecoder.from_module(model, VOCAB, capacity, precision)


@pytest.mark.parametrize("case", CASES)
def test_every_family_gives_the_librarys_logits_however_the_text_is_fed(case):
    ids = some_ids(80)
    model = module(case)
    expected = reference(model, ids)
    compact = CompactDecoder.from_module(model, VOCAB, 96, "float32")
    rows = [compact.forward(ids[:20])]
    rows += [compact.forward([token]) for token in ids[20:34]]
    wrong = some_ids(5, seed=9)
    compact.forward(wrong)
    compact.rollback(5)
    compact.read(ids[34:50])
    rows.append(compact.forward(ids[50:55]))
    compact.rollback(2)
    rows[-1] = rows[-1][:3]
    rows.append(compact.forward(ids[53:]))
    expected = torch.cat([expected[:34], expected[50:]])
    got = torch.cat(rows)
    assert compact.ids == ids
    assert got.dtype == torch.float32
    assert (got - expected).abs().max() < 1e-4


@pytest.mark.parametrize("case", ["llama tied", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize(("precision", "limit"), [("auto", 1e-5), ("int8", 1e-2)])
@pytest.mark.skipif(not linear.has_fbgemm(), reason="FBGEMM is missing on this machine")
def test_smaller_weights_stay_close_to_float32(case, precision, limit):
    model, compact = build(case, precision)
    ids = some_ids(60)
    assert divergence(reference(model, ids), compact.forward(ids)) < limit


@pytest.mark.parametrize(("precision", "limit"), [("float32", 2e-5), ("auto", 2e-5), ("int8", 2e-2)])
def test_a_position_has_the_same_logits_alone_and_in_a_block(precision, limit):
    # int8: its products are exact in any company, but a last bit of attention can move an activation one step.
    _, compact = build("qwen3", precision)
    ids = some_ids(40)
    compact.read(ids[:31])
    block = compact.forward(ids[31:])
    compact.rollback(9)
    alone = torch.cat([compact.forward([token]) for token in ids[31:]])
    assert (block - alone).abs().max() < limit


def test_where_nothing_is_packed_the_module_shares_the_weights_and_still_works(monkeypatch):
    """As on a GPU, and on a CPU without oneDNN."""
    monkeypatch.setattr(linear, "has_onednn", lambda: False)
    ids = some_ids(20)
    model = module("qwen2")
    before = reference(model, ids)
    compact = CompactDecoder.from_module(model, VOCAB, 96, "float32", consume=True)
    assert torch.equal(reference(model, ids), before)
    assert compact.weight_bytes == sum(p.numel() * 4 for p in model.parameters())
    merged = compact.weights.layers[0].qkv.weight.untyped_storage().data_ptr()
    assert model.model.layers[0].self_attn.k_proj.weight.untyped_storage().data_ptr() == merged


@pytest.mark.skipif(not linear.has_onednn(), reason="oneDNN is missing on this machine")
def test_float32_is_packed_too_and_its_embedding_stays_exact():
    model = module("llama tied")
    table = model.model.embed_tokens.weight.detach().clone()
    compact = CompactDecoder.from_module(model, VOCAB, 96, "float32", consume=True)
    assert sum(p.numel() for p in model.parameters() if p.ndim > 1) == 0
    assert torch.equal(compact.weights.table, table)
    assert isinstance(compact.weights.head, linear.OneDnn)


@pytest.mark.skipif(not linear.has_fbgemm(), reason="FBGEMM is missing on this machine")
def test_packed_weights_keep_none_of_the_modules_matrices():
    model = module("llama tied")
    whole = sum(p.numel() * 4 for p in model.parameters())
    compact = CompactDecoder.from_module(model, VOCAB, 96, "auto", consume=True)
    assert sum(p.numel() for p in model.parameters() if p.ndim > 1) == 0
    # Half of everything, and the tied table twice: packed as the head, and to look rows up.
    assert compact.weight_bytes < whole / 2 + VOCAB * 48 * 2 + 4000
    assert compact.forward(some_ids(4)).shape == (4, VOCAB)


def test_the_first_layers_share_weights_and_are_the_truncated_module():
    model, compact = build("qwen3")
    shallow = compact.first_layers(2)
    assert shallow.weight_bytes == 0
    assert shallow.weights.table is compact.weights.table
    compact.read(some_ids(10, seed=3))  # its own cache: the target's text leaves no trace
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers = 2
    ids = some_ids(12)
    assert (shallow.forward(ids) - reference(model, ids)).abs().max() < 1e-4
    with pytest.raises(ValueError, match="3 layers"):
        compact.first_layers(4)


def test_hidden_states_are_the_librarys_after_the_final_norm():
    model, compact = build(capacity=READ_CHUNK + 60)
    compact.keep_states = True
    ids = some_ids(READ_CHUNK + 50)
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
    compact.read(ids[:-7])
    compact.forward(ids[-7:-3])
    compact.rollback(2)
    compact.forward(ids[-5:])
    assert compact.states is not None
    assert (compact.states[: len(ids)] - expected).abs().max() < 1e-4
    assert len(compact.states) == compact.capacity


def test_a_padded_head_is_cut_and_a_short_one_filled_with_impossible():
    model = module()
    ids = some_ids(6)
    expected = reference(model, ids)
    cut = CompactDecoder.from_module(module(), VOCAB - 20, 96, "float32").forward(ids)
    assert cut.shape[1] == VOCAB - 20
    assert torch.allclose(cut, expected[:, : VOCAB - 20], atol=1e-4)
    wide = CompactDecoder.from_module(module(), VOCAB + 5, 96, "float32").forward(ids)
    assert torch.allclose(wide[:, :VOCAB], expected, atol=1e-4)
    assert (wide[:, VOCAB:] == float("-inf")).all()


@pytest.mark.parametrize("bad", [[3, VOCAB], [-1, 3]])
def test_an_id_without_a_row_is_refused_and_nothing_changes(bad):
    _, compact = build()
    compact.read([1, 2, 3])
    with pytest.raises(IdOutOfRange, match=str(VOCAB)):
        compact.forward(bad)
    assert compact.ids == [1, 2, 3]


def test_a_full_context_is_refused_before_anything_is_computed():
    _, compact = build(capacity=8)
    compact.read([1] * 6)
    with pytest.raises(ContextFull, match="8 tokens"):
        compact.forward([1, 2, 3])
    with pytest.raises(ContextFull):
        compact.read([1, 2, 3])
    assert compact.ids == [1] * 6
    assert compact.forward([4, 5]).shape == (2, VOCAB)


def test_a_forward_that_fails_halfway_leaves_the_text_as_it_was(monkeypatch):
    model, compact = build()
    ids = some_ids(12)
    compact.read(ids[:8])
    with monkeypatch.context() as patch:
        patch.setattr(compact, "_logits", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compact.forward([7, 7, 7])
    assert compact.ids == ids[:8]
    assert (compact.forward(ids[8:]) - reference(model, ids)[8:]).abs().max() < 1e-4


def test_after_a_reset_nothing_of_the_old_text_is_left():
    model, compact = build()
    compact.read(some_ids(30, seed=5))
    compact.reset()
    ids = some_ids(10)
    assert (compact.forward(ids) - reference(model, ids)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("gpt2", {}, "gpt2"),
        ("gemma2", {}, "gemma2"),
        ("mixtral", {}, "mixtral"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
        ("qwen2", {"layer_types": ["linear_attention"] * 3, "num_hidden_layers": 3}, "linear_attention"),
    ],
)
def test_other_models_are_refused_with_the_reason(kind, options, why):
    assert why in (supports(AutoConfig.for_model(kind, **options)) or "")


def test_matrices_that_are_not_plain_are_refused_with_their_name():
    model = module()

    class Wrapped(torch.nn.Linear):
        """Stands for a quantised or adapted matrix."""

    model.model.layers[1].mlp.up_proj = Wrapped(48, 80, bias=False)
    assert "up_proj is a Wrapped" in (supports_module(model) or "")
    with pytest.raises(ValueError, match="library class"):
        CompactDecoder.from_module(model, VOCAB, 96)
    assert supports_module(module()) is None
