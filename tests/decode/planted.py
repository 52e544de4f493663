"""A world of planted acceptance and costs: rounds as an engine would report them, without models and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specchat.decode.events import Prefill, Round, Token
from specchat.decode.pilot import Pilot
from specchat.decode.settings import Settings


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
    behind: int = field(default=0, init=False)

    def lengths(self, gamma: int, dice: random.Random, free: bool) -> int:
        for place in range(gamma):
            chance = self.free_keep if free else self.keep[min(place, len(self.keep) - 1)]
            if dice.random() >= chance:
                return place
        return gamma

    def round(self, index: int, gamma: int, dice: random.Random, prompt: int = 100) -> Round:
        free = gamma > 0 and dice.random() < self.free
        accepted = self.lengths(gamma, dice, free)
        forwards = 0 if free else gamma

        def about(seconds: float) -> float:
            return seconds * max(0.3, dice.gauss(1, self.jitter))

        drafting = about(self.draft * forwards)
        if forwards:
            drafting += self.catch_up * self.behind
            self.behind = 0
        else:
            self.behind += accepted + 1
        tokens = tuple(
            Token(0, "accepted" if i < accepted else "bonus" if gamma else "plain", 0.5, None, i)
            for i in range(accepted + 1)
        )
        return Round(
            index, tokens, None, gamma, gamma, accepted, "model" if gamma else "", 1, forwards,
            drafting, about(self.step + self.row * gamma), 0.0003, 0.0002, 0.0,
            prefill=Prefill(0, prompt, 0.0) if index == 0 else None,
        )  # fmt: skip

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
    """tokens and seconds are those expected at the γs that were chosen, catching up included: what the choices are
    worth, without the luck of the dice."""

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
            caught_up = world.catch_up * world.behind if gamma else 0.0
            event = world.round(index, gamma, dice)
            pilot.learn(event)
            see(event)
            written += len(event.tokens)
            run.tokens += world.tokens(gamma)
            run.seconds += world.seconds(gamma) + caught_up
            run.gammas.append(gamma)
            run.why.append(why)
            index += 1
    return run
