"""A GGUF file becomes the model and the tokenizer it was made from, or is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import gguf
import pytest
import torch
from transformers import PreTrainedModel

from specchat.model import gguf_convert
from specchat.model.errors import BadCheckpoint, NotEnoughMemory, UnsupportedModel
from specchat.model.loading import load_model
from tests.tiny import TINY_VOCAB, Kind, logits_of, noisy_copy, tiny_model, tiny_tokenizer
from tests.tiny_gguf import write_gguf

ODD_TEXTS = (
    "",
    " ",
    "  two  spaces",
    "a\n\nb\n\n\nc",
    "👋🏽 emoji 👨‍👩‍👧",
    "don't 12345 3.14",
    "日本語 ไทย é",
    "<|im_end|>x<|im_start|>",
)


def _through_blocks(model: PreTrainedModel) -> PreTrainedModel:
    """The model that a Q8_0 file really holds: every matrix rounded to its 8-bit blocks and back."""
    copy = noisy_copy(model, 0.0)
    kind = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for weight in copy.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.tensor(gguf.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)))
    return copy


@pytest.mark.parametrize("quantisation", ["F32", "Q8_0"])
@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("llama", False), ("qwen2", True)])
def test_a_gguf_gives_the_logits_of_the_model_it_was_made_from(
    tmp_path: Path, kind: Kind, tied: bool, quantisation: Literal["F32", "Q8_0"]
) -> None:
    """Rotary base and norm epsilon are unusual, so a default creeping in shows. Logits have a spread of about 3.

    F32: equal within 1e-4. Q8_0: the rounding to 8 bits is the file's own; what conversion adds to it (float16
    storage) stays below 0.03.
    """
    rope = {"rope_type": "default", "rope_theta": 777.0}
    model = tiny_model(kind, tie_word_embeddings=tied, rope_parameters=rope, rms_norm_eps=1e-3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.add_(torch.linspace(-0.3, 0.3, weight.numel()))
    path = write_gguf(tmp_path / "tiny.gguf", model, quantisation=quantisation)
    loaded = load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")
    expected = model if quantisation == "F32" else _through_blocks(model)
    difference = (logits_of(loaded.module) - logits_of(expected)).abs().max()
    assert difference < (1e-4 if quantisation == "F32" else 0.03)
    head, table = loaded.module.get_output_embeddings().weight, loaded.module.get_input_embeddings().weight
    assert (head.data_ptr() == table.data_ptr()) is tied
    assert (loaded.name, loaded.vocab, loaded.context) == ("tiny", TINY_VOCAB, 512)
    assert loaded.eos_ids == {TINY_VOCAB - 1, TINY_VOCAB - 3}


def test_a_gguf_gives_the_ids_of_the_tokenizer_it_was_made_from(tmp_path: Path) -> None:
    """Also from the converted copy; the invented names of padded rows are no tokens."""
    original = tiny_tokenizer(("<tool>",), regex=True)
    path = write_gguf(tmp_path / "t.gguf", tiny_model(vocab=300, tie_word_embeddings=True), original)
    loaded = load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")
    assert loaded.tokenizer.get_vocab() == original.get_vocab()
    assert loaded.vocab == len(original)
    assert loaded.tokenizer.chat_template == original.chat_template
    for text in (*ODD_TEXTS, "a<tool>b"):
        assert loaded.tokenizer(text)["input_ids"] == original(text)["input_ids"], text
        assert loaded.tokenizer.decode(original(text)["input_ids"]) == text


def test_a_gguf_is_converted_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf")
    said: list[str] = []
    load_model(str(path), device="cpu", cache_dir=tmp_path / "cache", progress=said.append)
    assert any("4 bytes a weight" in line for line in said), "the memory need is told"
    said.clear()
    load_model(str(path), device="cpu", cache_dir=tmp_path / "cache", progress=said.append)
    assert not any("Converting" in line for line in said)
    other = tiny_model(seed=9, tie_word_embeddings=True)
    write_gguf(path, other)
    loaded = load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")
    assert (logits_of(loaded.module) - logits_of(other)).abs().max() < 1e-4


def test_a_gguf_too_large_to_expand_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "t.gguf")
    monkeypatch.setattr(gguf_convert, "free_memory", lambda device: 1000)
    monkeypatch.setattr(gguf_convert, "_expanded", lambda summary: pytest.fail("was expanded all the same"))
    with pytest.raises(NotEnoughMemory, match="are free"):
        load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("keep", [0, 3, 4, 30, 2000, 20_000, -1])
def test_a_gguf_that_is_cut_off_is_named(tmp_path: Path, keep: int) -> None:
    path = write_gguf(tmp_path / "t.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadCheckpoint, match=r"t\.gguf"):
        load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "content", [b"hello, world" * 100, b"GGUF" + b"\xff" * 400, b"GGUF\x03\0\0\0" + b"\0" * 16]
)
def test_a_file_that_is_no_gguf_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.gguf").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"t\.gguf"):
        load_model(str(tmp_path / "t.gguf"), device="cpu", cache_dir=tmp_path / "cache")
    (tmp_path / "t.bin").write_bytes(b"hello")
    with pytest.raises(BadCheckpoint, match="not a GGUF file"):
        load_model(str(tmp_path / "t.bin"), device="cpu")


def test_an_unknown_text_splitter_is_refused_instead_of_guessed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", pre="brand-new")
    with pytest.raises(UnsupportedModel, match="brand-new"):
        load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")


def _scaled(factor: float, high: float = 4.0) -> PreTrainedModel:
    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0,
        "high_freq_factor": high, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    return tiny_model(tie_word_embeddings=True, rope_parameters=rope, max_position_embeddings=65536)


def test_the_rotary_scaling_of_llama_3_survives_conversion(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", _scaled(32.0))
    loaded = load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")
    ids = torch.randint(0, 250, (1, 700), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        positions = torch.arange(700)[None] * 13  # far apart: that is where the scaling shows
        expected = _scaled(32.0)(input_ids=ids, position_ids=positions).logits
        found = loaded.module(input_ids=ids, position_ids=positions).logits
        unscaled = tiny_model(
            tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}
        )
        without = unscaled(input_ids=ids, position_ids=positions).logits
    assert (found - expected).abs().max() < 1e-3
    assert (without - expected).abs().max() > 0.05, "the test would not notice a lost scaling"


def test_any_other_rotary_scaling_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", _scaled(8.0, high=3.0))
    with pytest.raises(UnsupportedModel, match="stretches its positions"):
        load_model(str(path), device="cpu", cache_dir=tmp_path / "cache")
