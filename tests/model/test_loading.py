"""What is loaded is what the files say, with everything the rest must know about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specchat.model.errors import BadCheckpoint, FetchFailed, UnsupportedModel
from specchat.model.loading import UNBOUNDED, load_model
from specchat.model.sources import kind_of
from tests.tiny import TINY_VOCAB, Kind, edit_json, logits_of, save_tiny, tiny_model, tiny_tokenizer


@pytest.mark.parametrize(
    ("kind", "rollback"),
    [
        ("llama", True), ("qwen2", True), ("qwen3", True), ("mistral", True), ("gemma2", True), ("gemma3", True),
        ("gpt2", True), ("mixtral", True), ("qwen3_moe", True), ("mamba", False), ("qwen3_next", False),
    ],
)  # fmt: skip
def test_every_family_loads_with_its_own_weights_and_says_whether_it_rolls_back(
    tmp_path: Path, kind: Kind, rollback: bool
) -> None:
    model = tiny_model(kind, seed=3)
    loaded = load_model(str(save_tiny(tmp_path / kind, model)), device="cpu")
    assert torch.equal(logits_of(loaded.module), logits_of(model))
    assert loaded.rollback is rollback
    assert ("LinearAttention" in loaded.no_rollback) is not rollback
    assert not loaded.module.training
    assert (loaded.name, loaded.dtype, loaded.vocab) == (kind, torch.float32, TINY_VOCAB)
    assert loaded.context == (UNBOUNDED if kind == "mamba" else 512)
    assert loaded.weight_bytes == sum(p.numel() * 4 for p in model.parameters())


def test_shards_are_put_together(sharded: Path) -> None:
    assert torch.equal(logits_of(load_model(str(sharded), device="cpu").module), logits_of(tiny_model()))


def test_the_type_asked_for_is_the_type_given(folder: Path) -> None:
    loaded = load_model(str(folder), dtype="bfloat16", device="cpu")
    assert {weight.dtype for weight in loaded.module.parameters()} == {torch.bfloat16}
    with pytest.raises(UnsupportedModel, match="float8"):
        load_model(str(folder), dtype="float8", device="cpu")


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_named(folder: Path, device: str) -> None:
    with pytest.raises(UnsupportedModel, match=device):
        load_model(str(folder), device=device)


@pytest.mark.parametrize(
    ("rows", "expected"), [(TINY_VOCAB + 9, TINY_VOCAB), (TINY_VOCAB - 2, TINY_VOCAB - 2)]
)
def test_padded_rows_and_missing_rows_are_no_tokens(tmp_path: Path, rows: int, expected: int) -> None:
    """A padded head is cut to the tokenizer; a token added without resizing the embedding is out of reach."""
    loaded = load_model(str(save_tiny(tmp_path / "m", tiny_model(vocab=rows))), device="cpu")
    assert loaded.vocab == expected
    assert all(index < expected for index in loaded.eos_ids)


def test_every_end_token_counts_wherever_it_is_stated(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<my-end>", "additional_special_tokens": ["<|eot_id|>"]})
    folder = save_tiny(tmp_path / "m", tiny_model(vocab=300), tokenizer)
    edit_json(folder / "generation_config.json", eos_token_id=[7, 8])
    edit_json(folder / "config.json", eos_token_id=9)
    ids = tokenizer.convert_tokens_to_ids(["<my-end>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"])
    assert load_model(str(folder), device="cpu").eos_ids == {7, 8, 9, *ids}


def test_a_default_the_library_fills_in_is_no_end_token(tmp_path: Path) -> None:
    """LlamaConfig says 2 when the file says nothing; here 2 is an ordinary byte."""
    folder = save_tiny(tmp_path / "m", tokenizer=tiny_tokenizer(eos="<|endoftext|>"))
    edit_json(folder / "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    assert 2 not in load_model(str(folder), device="cpu").eos_ids


def test_learned_positions_bound_the_context(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "m", tiny_model("gpt2", n_positions=32))
    assert load_model(str(folder), device="cpu").context == 32


@pytest.mark.parametrize(
    "source",
    [
        "./nowhere",
        "/no/such/folder",
        "~/nope",
        "models/nowhere/deeper",
        "model.gguf",
        "nonsense",
        "a b/c",
        "/",
        "",
    ],
)
def test_a_mistyped_path_is_not_sent_to_the_hub(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", asked)
    with pytest.raises(BadCheckpoint):
        load_model(source, device="cpu")


def test_a_hub_id_without_a_hub_is_one_sentence() -> None:
    assert kind_of("someone/some-model") == "hub"
    with pytest.raises(
        FetchFailed, match=r"someone/some-model is not on this machine and the hub cannot be reached"
    ):
        load_model("someone/some-model", device="cpu")
