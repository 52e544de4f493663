"""Trains a draft on what the target wrote, for a given time, with checkpoints to go on from.

The rates follow elapsed time, not steps: the run ends when it was told to, however busy the machine, and shards
that a generator finishes meanwhile are taken in. So two runs of one recipe differ as their clocks do; a resumed run
differs from an uninterrupted one in nothing else.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specchat.lab.distil.data import Batch, Corpus, Maker
from specchat.lab.distil.loss import Divergence, LossWeights
from specchat.lab.distil.network import Net
from specchat.lab.distil.optimiser import Optimiser
from specchat.model.linear import has_bfloat16

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. rows: ids a batch; features: weight of the distance to the target's true states."""

    minutes: float = 60.0
    seed: int = 0
    temperature: float = 0.6
    top_k: int = 20
    vocab: int = 8192
    rows: int = 2000
    matrix_rate: float = 0.02
    norm_rate: float = 2e-3
    warm_up: float = 0.05
    """Share of the time in which the rates rise."""
    user_share: float = 0.2
    unroll: int = 4
    deepen: float = 0.4
    """Share of the time in which two steps are unrolled; then `unroll`."""
    deep: float = 0.5
    """Share of a batch's conversations that go beyond the first step."""
    step_weight: float = 0.7
    """Weight of each further step on own states, against the one before."""
    kl: tuple[float, float] = (0.5, 0.1)
    """Weight of the KL divergence in the beginning and in the end. It covers all that the target might say, and
    steers well from afar; the total variation is what is wanted."""
    tv: float = 1.0
    features: float = 0.0
    held_out: int = 24
    """Conversations of every evaluation."""
    evaluate_s: float = 300.0
    checkpoint_s: float = 300.0

    def rate(self, done: float) -> float:
        """Share of the peak rates at this share of the time: up in a line, down in a cosine to 2 %."""
        return min(1.0, done / self.warm_up + 0.05) * (0.02 + 0.49 * (1 + math.cos(math.pi * min(done, 1.0))))

    def loss(self, done: float) -> LossWeights:
        """Weights at this share of the time."""
        return LossWeights(self.kl[0] + (self.kl[1] - self.kl[0]) * min(done, 1.0), self.tv)

    def steps(self, done: float) -> int:
        """Steps unrolled at this share of the time."""
        return self.unroll if done > self.deepen else min(2, self.unroll)


@dataclass(frozen=True, slots=True)
class Judge:
    """The draft's law as drafting has it. maker: makes batches over all ids it may propose; logits: [n, d] of outputs
    to [n, those ids], divided by the temperature."""

    maker: Maker
    logits: Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Trainer:
    """One run: the net, its optimiser, the corpus and the clock. head [V, d]: the target's rows of the subset."""

    net: Net
    corpus: Corpus
    maker: Maker
    head: Tensor
    judge: Judge
    recipe: Recipe
    folder: Path
    say: Say
    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0
    loss: float = 0.0
    """Moving mean over about ten batches."""
    history: list[dict[str, object]] = field(default_factory=list)
    optimiser: Optimiser = field(init=False)
    _spread: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.optimiser = Optimiser(self.net, self.recipe.matrix_rate, self.recipe.norm_rate)
        chats = self.corpus.train[:50]
        self._spread = torch.cat([torch.from_numpy(chat.states[:].astype("float32")) for chat in chats]).var(
            0
        )

    def run(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Trains until the time is used up, or `go_on` says no; saves and evaluates on the way and at the end.

        A run that is stopped saves at once, and is evaluated when it has gone on.
        """
        limit = self.recipe.minutes * 60
        saved = evaluated = self.elapsed
        last = time.monotonic()
        losses: list[tuple[float, float]] = []
        while self.elapsed < limit and go_on():
            losses.append(self.learn(self.elapsed / limit))
            now = time.monotonic()
            self.elapsed, last = self.elapsed + now - last, now
            if self.step % 10 == 0:
                self.report(losses, limit)
                losses = []
            if self.elapsed - evaluated >= self.recipe.evaluate_s:
                self.corpus.refresh()
                self.evaluate()
                evaluated = self.elapsed
            if self.elapsed - saved >= self.recipe.checkpoint_s:
                self.save()
                saved = self.elapsed
        if self.elapsed >= limit:
            self.evaluate()
        self.save()

    def learn(self, done: float) -> tuple[float, float]:
        """One batch; its loss and its mean chance of acceptance in the first step."""
        recipe, rng = self.recipe, random.Random(f"{self.recipe.seed}:{self.step}")
        batch = self.maker.batch(self.corpus.draw(recipe.rows, rng), recipe.user_share, rng)
        deep = math.ceil(recipe.deep * len(batch.pairs.lengths))
        total, kept = torch.zeros(()), []
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            outputs = self.net.unroll(batch.pairs, recipe.steps(done), deep)
        for k, out in enumerate(outputs):
            rows = batch.rows[batch.rows < len(out)]
            m = len(rows)
            loss, accepted = Divergence.apply(
                out[rows].float(), self.head, batch.places[:m], batch.p[:m], recipe.loss(done)
            )
            if recipe.features:
                loss = loss + recipe.features * self.distance(out, batch)
            total = total + recipe.step_weight**k * loss
            kept.append(float(accepted.detach()))
        total.backward()
        torch.nn.utils.clip_grad_norm_([weight for _, weight in self.net.named_parameters()], 1.0)
        self.optimiser.step(recipe.rate(done))
        value = float(total.detach())
        self.loss += (value - self.loss) * (0.1 if self.step else 1.0)
        self.step += 1
        self.tokens += len(batch.goals)
        return value, kept[0]

    def distance(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Mean square distance of the outputs to the states they stand for, in units of those states' variance."""
        return ((outputs - batch.goals[: len(outputs)]).square() / self._spread).clamp(max=9.0).mean()

    @torch.no_grad()
    def evaluate(self, steps: int = 5) -> list[float]:
        """Mean chance of acceptance on held-out conversations, for the first … `steps`-th proposal.

        The k-th stands k-1 places behind the last true state, the ids between being the target's own.
        """
        kept, judged = torch.zeros(steps), 0
        chats = self.corpus.held_out[: self.recipe.held_out]
        for at in range(0, len(chats), 8):
            batch = self.judge.maker.batch(chats[at : at + 8], 0.0, random.Random(0))
            judged += len(batch.rows)
            outputs = self.net.unroll(batch.pairs, steps)
            for k, out in enumerate(outputs):
                kept[k] += self._kept(out, batch)
            kept = kept[: len(outputs)]
        means = [round(x, 4) for x in (kept / judged).tolist()]
        self.history.append(
            {"step": self.step, "tokens": self.tokens, "seconds": round(self.elapsed), "kept": means}
        )
        self.say(
            f"held-out acceptance by position: {', '.join(f'{x:.3f}' for x in means)} ({len(chats)} conversations)"
        )
        return means

    def _kept(self, outputs: Tensor, batch: Batch, block: int = 512) -> float:
        """Sum of the chances of acceptance over the batch's rows; so many rows' logits are held at once."""
        total = 0.0
        for at in range(0, len(batch.rows), block):
            rows = slice(at, at + block)
            law = self.judge.logits(outputs[batch.rows[rows]])
            total += overlap(law, batch.places[rows], batch.p[rows], self.recipe.top_k)
        return total

    def report(self, losses: list[tuple[float, float]], limit: float) -> None:
        """One line: a bar, the time left, the last losses."""
        done = min(1.0, self.elapsed / limit)
        loss, kept = (sum(column) / len(losses) for column in zip(*losses, strict=True))
        left = max(0, round(limit - self.elapsed))
        self.say(
            f"[{'#' * round(20 * done):.<20}] {done:4.0%} {left // 60}:{left % 60:02} left, step {self.step}, "
            f"{self.tokens / max(self.elapsed, 1e-9):.0f} tokens/s, unroll {self.recipe.steps(done)}, "
            f"loss {loss:.3f}, accepted {kept:.3f} (training)"
        )

    # -- checkpoints ------------------------------------------------------------------------------

    def save(self) -> None:
        """Replaces the checkpoint in one step."""
        tensors = {f"net.{name}": weight.detach() for name, weight in self.net.named_parameters()}
        tensors |= {f"optimiser.{name}": value for name, value in self.optimiser.state.items()}
        tensors["subset"] = self.maker.subset
        tensors["used"] = torch.tensor([chat.used for chat in self.corpus.train])
        about = {
            "step": self.step,
            "tokens": self.tokens,
            "elapsed": self.elapsed,
            "loss": self.loss,
            "history": self.history,
            "shards": self.corpus.order,
        }
        temporary = self.folder / "checkpoint.tmp"
        save_file(tensors, temporary, metadata={"about": json.dumps(about)})
        os.replace(temporary, self.folder / "checkpoint.safetensors")

    def resume(self) -> bool:
        """Goes on from the folder's checkpoint, if there is one; the corpus must have read its shards first."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return False
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["about"])
            with torch.no_grad():
                for name, weight in self.net.named_parameters():
                    weight.copy_(file.get_tensor(f"net.{name}"))
            for name in self.optimiser.state:
                self.optimiser.state[name] = file.get_tensor(f"optimiser.{name}")
            for chat, used in zip(self.corpus.train, file.get_tensor("used").tolist(), strict=False):
                chat.used = used
        self.step, self.tokens, self.elapsed = about["step"], about["tokens"], about["elapsed"]
        self.loss, self.history = about["loss"], about["history"]
        return True


def begun(folder: Path) -> tuple[Tensor, list[str]] | None:
    """The vocabulary of the folder's checkpoint, and the shards in the order it read them; None without one."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    with safe_open(path, "pt") as file:
        return file.get_tensor("subset"), json.loads(file.metadata()["about"])["shards"]


def overlap(logits: Tensor, places: Tensor, p: Tensor, top_k: int) -> float:
    """Σ over rows of Σ min(p, q), both filtered as in drafting; logits are divided by the temperature already.

    places, p [m, k]: as in `Batch`.
    """
    values, best = logits.topk(min(top_k, logits.shape[-1]), -1)
    same = places[:, :, None] == best[:, None, :]
    here = (same * values.softmax(-1)[:, None, :]).sum(-1)
    return float(torch.minimum(here, p).sum())
