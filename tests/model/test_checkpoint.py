"""What is wrong with a folder is named, in one sentence, before anything is loaded from it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from specchat.model.checkpoint import check_safetensors, inspect_folder
from specchat.model.errors import BadCheckpoint, ModelError, UnsupportedModel
from specchat.model.loading import load_model
from tests.tiny import TINY_VOCAB, edit_json, logits_of, save_tiny, tiny_model


def refused(folder: Path, kind: type[ModelError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        load_model(str(folder), device="cpu")
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(sharded, BadCheckpoint, "lacks 1 of", shard.name)


def test_a_truncated_shard_is_named_with_what_it_lacks(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-10])
    refused(sharded, BadCheckpoint, shard.name, "10 bytes short")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        struct.pack("<Q", 10**12) + b"{}",
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 4) + b"{{{{",
        struct.pack("<Q", 2) + b"[]",
        b'\x40\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}'.ljust(72) + b"1234",
    ],
)  # fmt: skip
def test_a_damaged_weight_file_is_named(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, BadCheckpoint, "model.safetensors")


def test_bytes_behind_the_last_tensor_are_noticed(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"!")
    refused(folder, BadCheckpoint, "1 bytes too long")


def test_checking_a_file_reads_its_header_only(tmp_path: Path) -> None:
    """A sparse file of 3 GB is checked at once; its tensors' size is returned."""
    header = json.dumps(
        {"a": {"dtype": "F16", "shape": [1_500_000_000], "data_offsets": [0, 3_000_000_000]}}
    ).encode()
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 3_000_000_000)
    assert check_safetensors(path) == 3_000_000_000


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
@pytest.mark.parametrize("content", ["", '{"a": ', "[1]", "\udcff"])
def test_a_corrupt_json_file_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(folder, BadCheckpoint, name)


def test_a_corrupt_index_is_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    edit_json(index, weight_map={"a": "../../secret.safetensors"})
    refused(sharded, BadCheckpoint, "outside its folder")
    edit_json(index, weight_map=None)
    refused(sharded, BadCheckpoint, "no weight_map")
    index.write_text("{")
    refused(sharded, BadCheckpoint, index.name)


@pytest.mark.parametrize(
    ("name", "word"),
    [("config.json", "config.json"), ("model.safetensors", "no weights"), ("tokenizer.json", "tokenizer")],
)
def test_a_missing_file_is_named(folder: Path, name: str, word: str) -> None:
    (folder / name).unlink()
    refused(folder, BadCheckpoint, word)


def test_a_tokenizer_that_cannot_be_built_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, BadCheckpoint, "tokenizer")


def test_weights_missing_from_sound_files_are_never_replaced_by_random_ones(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, BadCheckpoint, "lack 1 of", "layers.1.mlp")


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=96)
    refused(folder, BadCheckpoint, str(folder))


def test_pickled_weights_are_refused_without_being_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, UnsupportedModel, "pytorch_model.bin", "can run code")


def test_a_checkpoint_that_brings_code_is_refused_and_its_code_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n")
    edit_json(
        folder / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"},
    )
    refused(folder, UnsupportedModel, "auto_map", "never")
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", None]})
    refused(folder, UnsupportedModel, "auto_map")
    assert not (tmp_path / "ran").exists()


def test_code_beside_a_native_class_is_ignored(folder: Path, tmp_path: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n")
    edit_json(folder / "config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"})
    assert torch.equal(logits_of(load_model(str(folder), device="cpu").module), logits_of(tiny_model()))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("kind", "word"), [("nonesuch", "does not know"), ("t5", "token by token"), (None, "model_type")]
)
def test_a_class_that_does_not_exist_or_does_not_generate_is_refused(
    folder: Path, kind: str | None, word: str
) -> None:
    edit_json(folder / "config.json", model_type=kind)
    refused(folder, UnsupportedModel if kind else BadCheckpoint, word)


def test_a_state_the_engine_cannot_carry_is_refused(tmp_path: Path) -> None:
    from transformers import RwkvConfig, RwkvForCausalLM

    config = RwkvConfig(vocab_size=TINY_VOCAB, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2)
    refused(save_tiny(tmp_path / "m", RwkvForCausalLM(config)), UnsupportedModel, "Rwkv", "state")


def test_a_sound_folder_is_described(sharded: Path) -> None:
    found = inspect_folder(sharded)
    assert len(found.weight_files) > 1
    assert found.weight_bytes == sum(p.numel() * 4 for p in tiny_model().parameters())
