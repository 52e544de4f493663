"""Two models fit together or not, for reasons a person can read; memory is planned before anything is loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specchat.model import pairing
from specchat.model.catalog import DEFAULT, PAIRS, find
from specchat.model.errors import BadCheckpoint, FetchFailed, NotEnoughMemory, PairMismatch
from specchat.model.loading import Loaded, load_model
from specchat.model.memory import free_memory, gigabytes
from specchat.model.pairing import MemoryPlan, check, plan
from specchat.model.runner import Runner
from specchat.model.sources import kind_of
from tests.tiny import TINY_VOCAB, save_tiny, tiny_model, tiny_tokenizer
from tests.tiny_gguf import write_gguf


def loaded(
    tmp_path: Path,
    name: str,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Loaded:
    return load_model(str(save_tiny(tmp_path / name, model, tokenizer)), device="cpu")


def test_two_families_with_one_vocabulary_fit(tmp_path: Path) -> None:
    fit = check(loaded(tmp_path, "t"), loaded(tmp_path, "d", tiny_model("gpt2")))
    assert fit.ok
    assert (fit.reasons, fit.notes) == ((), ())
    fit.demand()


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(320, 300), (300, 320), (TINY_VOCAB, 320)])
def test_differently_padded_heads_fit(tmp_path: Path, target_rows: int, draft_rows: int) -> None:
    target = loaded(tmp_path, "t", tiny_model(vocab=target_rows))
    draft = loaded(tmp_path, "d", tiny_model(vocab=draft_rows))
    assert check(target, draft).ok
    assert target.vocab == draft.vocab == TINY_VOCAB


def test_the_first_token_that_differs_is_named(tmp_path: Path) -> None:
    target = loaded(tmp_path, "target", tiny_model(vocab=300), tiny_tokenizer(("same", "foo", "baz")))
    draft = loaded(tmp_path, "draft", tiny_model(vocab=300), tiny_tokenizer(("same", "bar", "qux")))
    fit = check(target, draft)
    assert not fit.ok
    assert f"id {TINY_VOCAB + 1} is 'foo' in the target and 'bar' in the draft" in fit.reasons[0]
    with pytest.raises(PairMismatch, match=r"target and draft do not share a vocabulary"):
        fit.demand()


def test_a_token_only_one_of_them_has_is_named(tmp_path: Path) -> None:
    """Equal head widths say nothing: both have 300 rows."""
    target = loaded(tmp_path, "t", tiny_model(vocab=300), tiny_tokenizer(("<think>",)))
    draft = loaded(tmp_path, "d", tiny_model(vocab=300))
    assert (
        f"id {TINY_VOCAB} is '<think>' in the target and nothing in the draft"
        in check(target, draft).reasons[0]
    )
    assert (
        f"id {TINY_VOCAB} is nothing in the target and '<think>' in the draft"
        in check(draft, target).reasons[0]
    )


def test_a_draft_too_narrow_to_read_the_target_is_refused(tmp_path: Path) -> None:
    """One tokenizer with an added token; the draft's embedding was never resized."""
    tokenizer = tiny_tokenizer(("<think>",))
    wide = loaded(tmp_path, "wide", tiny_model(vocab=300), tokenizer)
    narrow = loaded(tmp_path, "narrow", tiny_model(), tokenizer)
    fit = check(wide, narrow)
    assert not fit.ok
    assert f"rows for {TINY_VOCAB} ids" in fit.reasons[0]
    turned = check(narrow, wide)
    assert turned.ok
    assert "never proposed" in turned.notes[0]


def test_a_state_that_cannot_be_rolled_back_is_a_reason_with_the_role(tmp_path: Path) -> None:
    attention, recurrent = loaded(tmp_path, "a"), loaded(tmp_path, "r", tiny_model("mamba"))
    as_draft, as_target = check(attention, recurrent), check(recurrent, attention)
    assert not as_draft.ok
    assert any(reason.startswith("The draft r cannot take back") for reason in as_draft.reasons)
    assert any(reason.startswith("The target r cannot take back") for reason in as_target.reasons)
    assert "Plain decoding works" in as_target.reasons[0]


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3", "gpt2", "mamba", "qwen3_next"])
def test_what_is_promised_about_rollback_is_what_the_runner_does(tmp_path: Path, kind: str) -> None:
    model = loaded(tmp_path, kind, tiny_model(kind))  # type: ignore[arg-type]
    assert Runner(model.module, model.vocab, 32).can_rollback == model.rollback


def test_a_draft_with_a_shorter_context_is_a_note(tmp_path: Path) -> None:
    fit = check(loaded(tmp_path, "t"), loaded(tmp_path, "d", tiny_model("gpt2", n_positions=32)))
    assert fit.ok
    assert "32 tokens and the target for 512" in fit.notes[0]


def test_different_end_tokens_are_a_note(tmp_path: Path) -> None:
    target = loaded(tmp_path, "t")
    draft = dataclasses.replace(target, eos_ids=frozenset({5}))
    fit = check(target, draft)
    assert fit.ok
    assert "end tokens" in fit.notes[0]


# -- memory -------------------------------------------------------------------------------------------


def forbid_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("weights were loaded")
    )


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plan_is_what_the_models_take(
    tmp_path: Path, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = save_tiny(tmp_path / "t", tiny_model(kind, tie_word_embeddings=True))  # type: ignore[arg-type]
    draft = save_tiny(tmp_path / "d")
    sizes, caches = [], 0
    for folder in (target, draft):
        model = load_model(str(folder), dtype=dtype, device="cpu")
        runner = Runner(model.module, model.vocab, 100)
        runner.forward([1, 2, 3])
        sizes.append(model.weight_bytes)
        caches += runner.cache_bytes
    forbid_loading(monkeypatch)
    found = plan(str(target), str(draft), context=100, dtype=dtype, device="cpu")
    assert (found.target_bytes, found.draft_bytes) == tuple(sizes)
    assert found.cache_bytes == caches
    assert found.fits
    found.demand()


def test_no_cache_is_planned_beyond_the_positions_a_model_has(tmp_path: Path) -> None:
    folder = str(save_tiny(tmp_path / "m", tiny_model("gpt2", n_positions=32)))
    large, small = (plan(folder, context=context, device="cpu").cache_bytes for context in (8192, 32))
    assert large == small == 2 * 2 * 64 * 32 * 4  # keys and values, layers, width, positions, bytes


def test_a_pair_that_does_not_fit_is_refused_with_the_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny(tmp_path / "m")
    need = plan(str(folder), str(folder), context=64, device="cpu").needed_bytes
    monkeypatch.setattr(pairing, "free_memory", lambda device: need)
    assert plan(str(folder), str(folder), context=64, device="cpu").fits
    monkeypatch.setattr(pairing, "free_memory", lambda device: need - 1)
    forbid_loading(monkeypatch)
    with pytest.raises(NotEnoughMemory, match=r"need .* of memory; .* are free.*Choose smaller models"):
        plan(str(folder), str(folder), context=64, device="cpu").demand()


def test_a_gpu_may_spill_into_ram_but_no_further() -> None:
    small = MemoryPlan(8_000_000_000, 1_000_000_000, 500_000_000, 6_000_000_000, "cuda", 4_000_000_000)
    assert small.fits
    assert "9.50 GB of VRAM; 6.00 GB are free (and 4.00 GB of RAM)" in small.sentence
    assert not dataclasses.replace(small, spill_bytes=3_000_000_000).fits


def test_a_gguf_is_planned_too(tmp_path: Path) -> None:
    model = tiny_model(tie_word_embeddings=True)
    path = write_gguf(tmp_path / "t.gguf", model)
    found = plan(str(path), context=10, device="cpu", cache_dir=tmp_path / "cache")
    assert found.target_bytes == sum(p.numel() * 4 for p in model.parameters())
    assert found.draft_bytes == 0


def test_a_plan_for_nothing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed):
        plan("someone/some-model", device="cpu")
    with pytest.raises(BadCheckpoint):
        plan(str(tmp_path), device="cpu")


def test_free_memory_respects_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specchat.model import memory

    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    whole = free_memory(torch.device("cpu"))
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert free_memory(torch.device("cpu")) == 150_000 < whole
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(torch.device("cpu")) > 1_000_000
    assert gigabytes(269_130_112) == "0.27 GB"


# -- catalogue ------------------------------------------------------------------------------------------


def test_the_catalogue_starts_with_the_pair_that_needs_no_hub() -> None:
    assert PAIRS[0] is DEFAULT
    assert find("builtin") is DEFAULT
    assert find("nothing") is None
    assert len({pair.key for pair in PAIRS}) == len(PAIRS)
    for pair in PAIRS[1:]:
        assert kind_of(pair.target) == kind_of(pair.draft) == "hub"
        assert pair.draft_size < pair.target_size
