"""What a tuning run is to measure: prompts, seeds, sampling, and the variants that are compared on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from specchat.decode.engine import MAX_GAMMA
from specchat.decode.sampling import Sampling
from specchat.lab import suite
from specchat.lab.suite import Prompt
from specchat.lab.tune_arguments import FULL, QUICK

EXHAUSTIVE = tuple(range(1, 9))
"""Every γ that an exhaustive run measures."""

MOST_PROMPTS = 200


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting that is measured. misaligned: the draft draws with another sampling than the target."""

    gamma: int
    drafter: str = ""
    misaligned: bool = False

    @property
    def key(self) -> str:
        """Its name in a record."""
        return "plain" if self.gamma == 0 else f"{self.drafter} {self.gamma}{' misaligned' * self.misaligned}"


PLAIN = Variant(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. Its sampling's seed is not used: `seeds` are.

    drafter "": the pair's own choice. gamma: of the stages before the sweep (None: the predicted best).
    gammas: these alone are swept (): those that could win. budget_s: where the machine is too slow for it, some
    prompts are left out (None: never).
    """

    prompts: tuple[Prompt, ...]
    tokens: int
    seeds: tuple[int, ...] = (0,)
    sampling: Sampling = Sampling()  # noqa: RUF009 - immutable
    drafter: str = ""
    gamma: int | None = None
    gammas: tuple[int, ...] = ()
    exhaustive: bool = False
    budget_s: float | None = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("There is no prompt to tune on: give at least one.")
        if len(self.prompts) > MOST_PROMPTS:
            raise ValueError(f"{len(self.prompts)} prompts are too many; give at most {MOST_PROMPTS}.")
        if self.tokens < 8:
            raise ValueError(f"{self.tokens} tokens a reply are too few to measure; give 8 or more.")
        if not self.seeds:
            raise ValueError("At least one seed is needed.")
        for gamma in (*self.gammas, *([] if self.gamma is None else [self.gamma])):
            if not 1 <= gamma <= MAX_GAMMA:
                raise ValueError(f"γ {gamma} cannot be tuned; it must be between 1 and {MAX_GAMMA}.")

    def units(self) -> Iterator[tuple[Prompt, int]]:
        """Every (prompt, seed), categories mixed."""
        for seed in self.seeds:
            for prompt in self.prompts:
                yield prompt, seed

    @property
    def size(self) -> int:
        """How many units each variant has."""
        return len(self.prompts) * len(self.seeds)

    def affordable(self, plain_s: float, variants: int) -> Plan:
        """As many of the prompts as fit the budget, each category at least once. plain_s: seconds of a plain round.

        No variant is expected to be slower than plain decoding by much; a tenth is added for reading the prompts.
        """
        if self.budget_s is None:
            return self
        each = 1.1 * len(self.seeds) * self.tokens * plain_s * variants
        least = max(2, len({prompt.category for prompt in self.prompts}))
        return replace(self, prompts=self.prompts[: max(least, int(self.budget_s / max(each, 1e-9)))])

    @property
    def draft_sampling(self) -> Sampling:
        """What a misaligned draft draws with."""
        return misaligned(self.sampling)

    def data(self) -> dict[str, object]:
        """As JSON has it."""
        return cast("dict[str, object]", json.loads(json.dumps(asdict(self))))


def plan_of(data: Mapping[str, object]) -> Plan:
    """The plan that `Plan.data` gave; ValueError when it is none."""
    try:
        values = dict(data)
        values["prompts"] = tuple(Prompt(**entry) for entry in cast("list[dict[str, str]]", data["prompts"]))
        values["sampling"] = Sampling(**cast("dict[str, float]", data["sampling"]))  # type: ignore[arg-type]
        for name in ("seeds", "gammas"):
            values[name] = tuple(cast("list[int]", data[name]))
        return Plan(**values)  # type: ignore[arg-type]
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"This is no tuning plan ({problem!r}).") from problem


def misaligned(sampling: Sampling) -> Sampling:
    """The sampling of a draft that nobody aligned: its model's plain law, or a narrow one where that is the target's."""
    plain = Sampling(temperature=1.0, top_k=0)
    return Sampling(temperature=0.6, top_k=20) if replace(sampling, seed=None) == plain else plain


def built_in(quick: bool, count: int | None = None) -> tuple[Prompt, ...]:
    """A sample of the suite: the first of each category in turn."""
    number = count if count is not None else (QUICK if quick else FULL)["prompts"]
    if number < 1:
        raise ValueError(f"{number} prompts are too few; give 1 or more.")
    return tuple(suite.sample(suite.load(), number))


def own_prompts(text: str) -> tuple[Prompt, ...]:
    """A person's prompts: separated by blank lines, or one a line when there are none. ValueError without any."""
    blocks = [block.strip() for block in _blocks(text.strip())]
    found = [block for block in blocks if block]
    if not found:
        raise ValueError("There is no prompt to tune on: write at least one.")
    return tuple(
        Prompt(f"own-{place:02}-{hashlib.sha256(block.encode()).hexdigest()[:6]}", "own", block)
        for place, block in enumerate(found, start=1)
    )


def _blocks(text: str) -> Sequence[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join(lines).split("\n\n") if "" in lines else lines


def prompts_from(argument: str | None, quick: bool) -> tuple[Prompt, ...]:
    """`--prompts`: a number of built-in ones, or a file: a suite in JSON, or text. ValueError says what is wrong."""
    if argument is None or argument.isdecimal():
        return built_in(quick, None if argument is None else int(argument))
    path = Path(argument)
    if path.suffix == ".json":
        return tuple(suite.load(path))
    try:
        return own_prompts(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(
            f"--prompts is {argument!r}: neither a number nor a text file that can be read ({problem})."
        ) from problem
