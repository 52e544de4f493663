"""A draft learns from what its target wrote: the gradient, the gain, going on after a stop."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specchat.lab.distil.data import Corpus, Maker
from specchat.lab.distil.loss import Divergence, LossWeights
from specchat.lab.distil.shards import ASSISTANT
from specchat.lab.distil.start import trainer_at
from specchat.lab.distil.train import Recipe, Trainer, begun, overlap
from specchat.model.compact import CompactDecoder
from tests.lab.distil_rig import target_of, written
from tests.tiny import TINY_VOCAB

RECIPE = Recipe(minutes=10.0, vocab=200, rows=300, held_out=10, unroll=3, matrix_rate=0.03)


@pytest.fixture(scope="module")
def target() -> CompactDecoder:
    return target_of()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, target: CompactDecoder) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    written(folder, 8000, target)
    return folder


def trainer(target: CompactDecoder, texts: Path, folder: Path, recipe: Recipe = RECIPE) -> Trainer:
    return trainer_at(target, Corpus(texts), recipe, folder, lambda _: None)


def plain_loss(outputs: Tensor, head: Tensor, places: Tensor, p: Tensor, weights: LossWeights) -> Tensor:
    """The definition, over the whole vocabulary of the draft; p of an id outside it can only be lost."""
    q = (outputs @ head.T).softmax(-1)
    total = torch.zeros(())
    for row, where, law in zip(q, places, p, strict=True):
        inside = where >= 0
        mine, theirs = row[where[inside]], law[inside]
        kl = (theirs * (theirs.log() - mine.log())).sum()
        total = total + weights.kl * kl + weights.tv * (1 - torch.minimum(mine, theirs).sum())
    return total / len(outputs)


@pytest.mark.parametrize("weights", [LossWeights(), LossWeights(1.0, 0.0), LossWeights(0.0, 1.0)])
def test_the_written_out_gradient_is_autograds(weights: LossWeights) -> None:
    rng = torch.Generator().manual_seed(3)
    outputs = torch.randn(7, 5, generator=rng, dtype=torch.float64).requires_grad_()
    head = torch.randn(11, 5, generator=rng, dtype=torch.float64)
    places = torch.stack([torch.randperm(11, generator=rng)[:4] for _ in range(7)])
    places[0, 1] = places[3, 3] = -1
    p = torch.rand(7, 4, generator=rng, dtype=torch.float64).softmax(-1).masked_fill(places < 0, 0.0)
    expected = plain_loss(outputs, head, places, p, weights)
    (right,) = torch.autograd.grad(expected, outputs)
    loss, kept = Divergence.apply(outputs, head, places, p, weights)
    (3 * loss).backward()
    torch.testing.assert_close(loss, expected)
    assert outputs.grad is not None
    torch.testing.assert_close(outputs.grad, 3 * right)
    q = (outputs @ head.T).softmax(-1).gather(1, places.clamp(min=0)).masked_fill(places < 0, 0.0)
    torch.testing.assert_close(kept, torch.minimum(p, q).sum(-1).mean())


def test_a_gradient_in_float32_may_be_rounded_but_points_the_same_way() -> None:
    rng = torch.Generator().manual_seed(4)
    outputs = torch.randn(40, 24, generator=rng)
    head, p = torch.randn(90, 24, generator=rng), torch.rand(40, 6, generator=rng).softmax(-1)
    places = torch.stack([torch.randperm(90, generator=rng)[:6] for _ in range(40)])
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x = outputs.clone().to(dtype).requires_grad_()
        loss, _ = Divergence.apply(x, head.to(dtype), places, p.to(dtype), LossWeights())
        loss.backward()
        assert x.grad is not None
        gradients.append(x.grad.double().flatten())
    rounded, exact = gradients
    assert (rounded - exact).norm() < 0.01 * exact.norm()


def test_overlap_is_one_for_the_law_itself_and_zero_for_another() -> None:
    table = torch.eye(40)
    maker = Maker(table, torch.arange(40), temperature=0.6, top_k=20)
    assert torch.equal(maker.place, torch.arange(40))
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    best = logits.topk(20)

    p = best.values.softmax(-1)
    assert overlap(logits, best.indices, p, 20) == pytest.approx(3.0, abs=1e-5)
    assert overlap(-logits, best.indices, p, 5) == pytest.approx(0.0, abs=1e-5)
    assert (
        overlap(logits, best.indices.masked_fill(p < p.amax(), -1), p.masked_fill(p < p.amax(), 0.0), 20) < 1
    )


def test_the_batch_holds_the_targets_law_for_the_id_after_each_pair(
    target: CompactDecoder, texts: Path
) -> None:
    corpus = Corpus(texts)
    corpus.refresh()
    chat = corpus.train[0]
    batch = Maker(target.weights.table, torch.arange(TINY_VOCAB), 0.6, 20).batch(
        [chat], 0.0, random.Random(0)
    )
    assert batch.rows.tolist() == [j for j in range(len(chat.ids) - 2) if chat.roles[j + 2] == ASSISTANT]
    target.reset()
    law = (target.forward(chat.ids.tolist()) / 0.6).topk(20)
    for row, places, p in zip(batch.rows.tolist(), batch.places, batch.p, strict=True):
        # Pair j holds ids j and j+1, so what follows is judged by the law behind id j+1.
        right = torch.zeros(TINY_VOCAB).scatter(0, law.indices[row + 1], law.values[row + 1].softmax(-1))
        given = torch.zeros(TINY_VOCAB).scatter(0, places, p)
        torch.testing.assert_close(given, right, atol=1e-2, rtol=1e-2)


def test_a_few_steps_raise_the_held_out_acceptance(
    target: CompactDecoder, texts: Path, tmp_path: Path
) -> None:
    run = trainer(target, texts, tmp_path)
    before = run.evaluate(3)
    for step in range(30):
        run.learn(step / 30)
    after = run.evaluate(3)
    assert after[0] > before[0] + 0.03 and after[1] > before[1], (before, after)


def test_going_on_from_a_checkpoint_is_as_if_nothing_had_happened(
    target: CompactDecoder, texts: Path, tmp_path: Path
) -> None:
    """At given shares of the time; a real run takes them from its clock."""
    whole = trainer(target, texts, tmp_path)
    for step in range(6):
        whole.learn(step / 6)
    (tmp_path / "part").mkdir()
    first = trainer(target, texts, tmp_path / "part")
    for step in range(3):
        first.learn(step / 6)
    first.evaluate(2)
    first.save()
    assert begun(tmp_path) is None and begun(tmp_path / "part") is not None
    second = trainer(target, texts, tmp_path / "part")
    assert (second.step, second.tokens, second.loss) == (first.step, first.tokens, first.loss)
    assert second.history == first.history and torch.equal(second.maker.subset, first.maker.subset)
    for step in range(3, 6):
        second.learn(step / 6)
    for (name, right), (_, weight) in zip(
        whole.net.named_parameters(), second.net.named_parameters(), strict=True
    ):
        assert torch.equal(weight, right), name
    assert second.evaluate(2) == whole.evaluate(2)


def test_texts_that_came_since_the_checkpoint_are_taken_in(target: CompactDecoder, tmp_path: Path) -> None:
    written(tmp_path, 3000, target)
    first = trainer(target, tmp_path, tmp_path)
    first.learn(0.0)
    first.save()
    written(tmp_path, 6000, target)
    second = trainer(target, tmp_path, tmp_path)
    assert second.corpus.order[: len(first.corpus.order)] == first.corpus.order
    assert len(second.corpus.train) > len(first.corpus.train)
    assert [chat.used for chat in second.corpus.train][: len(first.corpus.train)] == [
        chat.used for chat in first.corpus.train
    ]


def test_a_stopped_run_saves_and_its_time_counts(target: CompactDecoder, texts: Path, tmp_path: Path) -> None:
    steps = iter(range(3))
    run = trainer(target, texts, tmp_path)
    run.run(lambda: next(steps, None) is not None)
    assert run.step == 3 and run.elapsed > 0 and not run.history
    again = trainer(target, texts, tmp_path)
    assert (again.step, again.elapsed) == (3, run.elapsed)


def test_too_little_text_is_refused_in_a_sentence(target: CompactDecoder, tmp_path: Path) -> None:
    written(tmp_path / "texts", 60, target)
    with pytest.raises(ValueError, match=r"too few.*Raise --tokens\.$"):
        trainer(target, tmp_path / "texts", tmp_path)
