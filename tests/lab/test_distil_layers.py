"""`distil --kind layers`: the target's first two blocks, trained, as a checkpoint that any program loads."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from specchat.lab.distil.data import Conversation, Corpus, Maker
from specchat.lab.distil.export import export_layers
from specchat.lab.distil.layers import LayersNet
from specchat.lab.distil.network import Packed
from specchat.lab.distil.shards import ASSISTANT
from specchat.lab.distil.start import layers_net, trainer_at
from specchat.lab.distil.train import Recipe, Trainer
from specchat.model.compact import CompactDecoder
from specchat.model.loading import load_model
from tests.lab.distil_rig import written
from tests.tiny import TINY_VOCAB, Kind, save_tiny, tiny_model

KINDS: list[tuple[Kind, bool]] = [
    ("llama", True), ("llama", False), ("qwen2", True), ("qwen2", False), ("qwen3", True), ("mistral", False),
]  # fmt: skip
"""Families, and whether the head is the embedding; mistral's window is shorter than a conversation."""
STEPS = 60
RECIPE = Recipe(minutes=10.0, vocab=200, rows=300, held_out=10, unroll=1, matrix_rate=0.03, norm_rate=0.01)


def source_of(folder: Path, kind: Kind = "llama", tied: bool = True, half: bool = False) -> Path:
    """A target of four blocks on disk."""
    model = tiny_model(kind, num_hidden_layers=4, tie_word_embeddings=tied)
    return save_tiny(folder, model.half() if half else model)


def decoder(source: Path) -> CompactDecoder:
    return CompactDecoder.from_module(load_model(str(source)).module, TINY_VOCAB, 256, "float32")


def moved(net: LayersNet) -> LayersNet:
    """Other weights than the target's, as after training."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(1 + 0.2 * torch.randn(weight.shape, generator=rng)).add_(0.01)
    return net


def packed(table: Tensor, *texts: list[int]) -> Packed:
    embedded = [table[torch.tensor(ids)] for ids in texts]
    later, first = torch.cat([e[1:] for e in embedded]), torch.cat([e[:1] for e in embedded])
    return Packed(torch.zeros_like(later), later, first, tuple(len(ids) - 1 for ids in texts))


def reloaded(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize(("kind", "tied"), KINDS)
def test_transformers_loads_the_checkpoint_and_it_says_what_the_trained_net_said(
    kind: Kind, tied: bool, tmp_path: Path
) -> None:
    """Packed conversations come out as each alone does, so they do not see each other either."""
    source = source_of(tmp_path / "target", kind, tied)
    net = moved(layers_net(source))
    out = export_layers(tmp_path / "made" / "draft", net, source, "tiny", {"command": "x"})
    module = reloaded(out)
    assert type(module) is type(reloaded(source)) and module.config.num_hidden_layers == 2
    files = [load_file(folder / "model.safetensors") for folder in (source, out)]
    frozen = [name for name in files[1] if "embed" in name or "lm_head" in name]
    assert len(frozen) == (1 if tied else 2)
    assert all(torch.equal(files[0][name], files[1][name]) for name in frozen)
    texts = [[(7 * i + 3) % 250 for i in range(n)] for n in (21, 2, 34)]
    batch = packed(module.get_input_embeddings().weight, *texts)
    with torch.no_grad():
        (outputs,) = net.unroll(batch, 3, deep=1)
        given = (outputs @ module.get_output_embeddings().weight.T).split(batch.lengths)
        for ids, logits in zip(texts, given, strict=True):
            right = module(input_ids=torch.tensor([ids])).logits[0, 1:]
            torch.testing.assert_close(logits, right, atol=1e-4, rtol=1e-4)
    about = json.loads(out.with_name("draft.json").read_text(encoding="utf-8"))
    assert about["weights"] == sum(weight.numel() for weight in net.parameters())
    assert about["file"] == "draft/model.safetensors" and about["command"] == "x"


def test_the_checkpoint_stores_what_its_target_does_and_brings_its_tokenizer(tmp_path: Path) -> None:
    source = source_of(tmp_path / "target", half=True)
    out = export_layers(tmp_path / "draft", moved(layers_net(source)), source, "tiny", {})
    tensors = load_file(out / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert not any(".layers.2." in name or ".layers.3." in name for name in tensors)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not list(tmp_path.glob(".draft*")), "nothing half-made is left"


# -- training -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source_of(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(source: Path) -> CompactDecoder:
    return decoder(source)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, target: CompactDecoder) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    written(folder, 8000, target)
    return folder


def trainer(target: CompactDecoder, source: Path, texts: Path, folder: Path) -> Trainer:
    return trainer_at(target, Corpus(texts), RECIPE, folder, lambda _: None, None, source)


def chance(module: PreTrainedModel, chats: list[Conversation]) -> float:
    """Mean of Σ min(p, q) over the replies, by definition: laws over all ids, each cut to its 20 best."""
    kept = []
    for chat in chats:
        ids = torch.from_numpy(chat.ids.astype("int64"))
        with torch.no_grad():
            best = (module(input_ids=ids[None]).logits[0] / 0.6).topk(20)
        theirs = (torch.from_numpy(chat.top_logits[:, :20].astype("float32")) / 0.6).softmax(-1)
        for at in range(1, len(ids) - 1):
            if chat.roles[at + 1] == ASSISTANT:
                q = torch.zeros(TINY_VOCAB).scatter(0, best.indices[at], best.values[at].softmax(-1))
                p = torch.zeros(TINY_VOCAB).scatter(
                    0, torch.from_numpy(chat.top_ids[at, :20].astype("int64")), theirs[at]
                )
                kept.append(float(torch.minimum(p, q).sum()))
    return sum(kept) / len(kept)


def test_a_few_steps_raise_the_held_out_acceptance_which_is_that_of_the_checkpoint(
    target: CompactDecoder, source: Path, texts: Path, tmp_path: Path
) -> None:
    run = trainer(target, source, texts, tmp_path)
    before = run.evaluate()
    for step in range(STEPS):
        run.learn(step / STEPS)
    after = run.evaluate()
    assert len(after) == 1 and after[0] > before[0] + 0.01, (before, after)
    assert isinstance(run.net, LayersNet)
    out = export_layers(tmp_path / "draft", run.net, source, "tiny", {})
    assert chance(reloaded(out), run.corpus.held_out[:10]) == pytest.approx(after[0], abs=2e-3)


def test_what_is_judged_includes_ids_that_training_left_out(
    target: CompactDecoder, source: Path, texts: Path, tmp_path: Path
) -> None:
    run = trainer(target, source, texts, tmp_path)
    chats = run.corpus.held_out[:4]
    small, all_ids = (maker.batch(chats, 0.0, random.Random(0)) for maker in (run.maker, run.judge.maker))
    assert len(run.maker.subset) == 200 and bool((small.places < 0).any())
    assert bool((all_ids.places >= 0).all()) and float(all_ids.p.sum()) == pytest.approx(len(all_ids.p))


def test_the_first_guess_is_nearer_to_the_targets_states(
    target: CompactDecoder, source: Path, texts: Path, tmp_path: Path
) -> None:
    run, plain = trainer(target, source, texts, tmp_path), layers_net(source)
    maker = Maker(target.weights.table, torch.arange(TINY_VOCAB), 0.6, 20)
    batch = maker.batch(run.corpus.held_out[:4], 0.0, random.Random(0))
    with torch.no_grad():
        fitted, untouched = (net.unroll(batch.pairs, 1)[0] for net in (run.net, plain))
    assert (fitted - batch.goals).norm() < 0.95 * (untouched - batch.goals).norm()


def test_going_on_from_a_checkpoint_is_as_if_nothing_had_happened(
    target: CompactDecoder, source: Path, texts: Path, tmp_path: Path
) -> None:
    whole = trainer(target, source, texts, tmp_path)
    for step in range(6):
        whole.learn(step / 6)
    (tmp_path / "part").mkdir()
    first = trainer(target, source, texts, tmp_path / "part")
    for step in range(3):
        first.learn(step / 6)
    first.save()
    second = trainer(target, source, texts, tmp_path / "part")
    assert (second.step, second.tokens, second.loss) == (first.step, first.tokens, first.loss)
    for step in range(3, 6):
        second.learn(step / 6)
    pairs = zip(whole.net.named_parameters(), second.net.named_parameters(), strict=True)
    for (name, right), (_, weight) in pairs:
        assert torch.equal(weight, right), name
    assert second.evaluate() == whole.evaluate()
