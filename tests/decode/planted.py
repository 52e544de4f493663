"""A world of planted acceptance and costs: rounds as an engine would report them, without models and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from specchat.decode.events import Prefill, Round, Token
from specchat.decode.pilot import Pilot
from specchat.decode.settings import Settings
from specchat.decode.stopping import ALWAYS, Stopping


@dataclass
class Block:
    """What was offered in one round: the chance of each proposal, given those before it, and the forwards it took."""

    free: bool = False
    chances: list[float] = field(default_factory=list)
    forwards: int = 0
    asked: int = 0
    """The most that was wanted."""


@dataclass
class World:
    """keep: chance that a place's proposal is kept, given those before it (the last entry goes on).

    step: seconds of a plain step; draft: of one draft forward; row: what each further row adds to a verification;
    jitter: relative spread of every time; catch_up: draft seconds for each token that was written without it.
    free: share of rounds in which a free drafter proposes, all kept with chance `free_keep` a place.
    """

    keep: Sequence[float]
    step: float = 0.015
    draft: float = 0.001
    row: float = 0.0005
    jitter: float = 0.08
    catch_up: float = 0.0
    free: float = 0.0
    free_keep: float = 0.95
    levels: Sequence[float] = ()
    """What a proposal's own chance may be, of which the draft is as sure; their mean is every place's `keep`."""
    behind: int = field(default=0, init=False)

    def block(self, gamma: int, dice: random.Random, stopping: Stopping) -> Block:
        """What a drafter offers: each proposal's own chance to be kept, and forwards."""
        block = Block(free=gamma > 0 and dice.random() < self.free, asked=gamma)
        if gamma and not block.free and not stopping.starts("model"):
            return block
        while len(block.chances) < gamma:
            place = min(len(block.chances), len(self.keep) - 1)
            chance = self.free_keep if block.free else self.keep[place]
            if self.levels and not block.free:
                chance = dice.choice(self.levels)
            block.forwards += not block.free
            sure = chance if self.levels and stopping.looks and not block.free else None
            if not stopping.takes("4-gram" if block.free else "model", sure):
                break
            block.chances.append(chance)
            if not block.free and len(block.chances) < gamma and not stopping.starts("model"):
                break
        return block

    def round(self, index: int, gamma: int, dice: random.Random, stopping: Stopping = ALWAYS) -> Round:
        """One round as an engine reports it."""
        return self.judged(index, self.block(gamma, dice, stopping), dice)

    def judged(self, index: int, block: Block, dice: random.Random, prompt: int = 100) -> Round:
        drafted, forwards = len(block.chances), block.forwards
        accepted = next((i for i, chance in enumerate(block.chances) if dice.random() >= chance), drafted)

        def about(seconds: float) -> float:
            return seconds * max(0.3, dice.gauss(1, self.jitter))

        drafting = about(self.draft * forwards)
        if forwards:
            drafting += self.catch_up * self.behind
            self.behind = 0
        else:
            self.behind += accepted + 1
        tokens = tuple(
            Token(0, "accepted" if i < accepted else "bonus" if drafted else "plain", 0.5, None, i)
            for i in range(accepted + 1)
        )
        return Round(
            index, tokens, None, max(drafted, min(1, block.asked)), drafted, accepted,
            "model" if drafted else "", 1, forwards,
            drafting, about(self.step + self.row * drafted), 0.0003, 0.0002, 0.0,
            prefill=Prefill(0, prompt, 0.0) if index == 0 else None,
        )  # fmt: skip

    def expected(self, block: Block) -> tuple[float, float]:
        """Tokens and seconds that a block like this brings and takes on average."""
        seconds = self.step + self.row * len(block.chances) + self.draft * block.forwards + 0.0005
        return 1 + sum(accumulate(block.chances, mul)), seconds

    def tokens(self, gamma: int) -> float:
        """Expected tokens of a round."""
        found = 1.0
        for free, share in ((False, 1 - self.free), (True, self.free)):
            reached = 1.0
            for place in range(gamma):
                reached *= self.free_keep if free else self.keep[min(place, len(self.keep) - 1)]
                found += share * reached
        return found

    def seconds(self, gamma: int) -> float:
        """Expected seconds of a round."""
        return self.step + self.row * gamma + self.draft * gamma * (1 - self.free) + 0.0005

    def speed(self, gamma: int) -> float:
        """Tokens a second at a fixed γ."""
        return self.tokens(gamma) / self.seconds(gamma)

    def best(self, most: int) -> float:
        """Tokens a second at the best fixed γ."""
        return max(self.speed(gamma) for gamma in range(most + 1))


@dataclass
class Run:
    """tokens and seconds are those expected of the blocks that were offered, catching up included: what the choices
    are worth, without the luck of the dice."""

    tokens: float = 0.0
    seconds: float = 0.0
    gammas: list[int] = field(default_factory=list)
    why: list[str] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def steer(
    worlds: Sequence[World], settings: Settings, seed: int, tokens: int = 512, pilot: Pilot | None = None,
    see: Callable[[Round], None] = lambda event: None,
) -> Run:  # fmt: skip
    """One reply of so many tokens in each world, one after the other, with one pilot."""
    pilot, dice, run = pilot or Pilot(), random.Random(seed), Run()
    for world in worlds:
        index = written = 0
        while written < tokens:
            gamma, why = pilot.choose(settings)
            block = world.block(gamma, dice, pilot.stopping(settings))
            caught_up = world.catch_up * world.behind if block.forwards else 0.0
            event = world.judged(index, block, dice)
            pilot.learn(event)
            see(event)
            written += len(event.tokens)
            brought, took = world.expected(block)
            run.tokens += brought
            run.seconds += took + caught_up
            run.gammas.append(event.gamma)
            run.why.append(why)
            index += 1
    return run
