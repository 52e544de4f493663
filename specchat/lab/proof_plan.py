"""What is to be proved, and what was found: the values that the proof's parts, its words and its tables share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specchat.chat.stream import text_of
from specchat.decode.engine import Settings
from specchat.decode.stats import Stats
from specchat.lab.agreement import Parting
from specchat.lab.proof_stats import Key, Test

if TYPE_CHECKING:
    from specchat.pair import Pair

ALPHA = 1e-3
"""How often a correct pair is called different: once in a thousand runs, all tests of a run together."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to prove. prompts: (name for the screen, text)."""

    settings: Settings
    prompts: tuple[tuple[str, str], ...]
    greedy: bool = True
    law: bool = True
    tokens: int = 64
    """Tokens of each greedy text."""
    first: int = 2
    """Tokens whose joint law is tested."""
    seconds: float = 45.0
    """Time for drawing samples."""
    samples: int = 20_000
    """Most samples of each kind."""
    seed: int = 0

    @property
    def on(self) -> Settings:
        """What is put to the test. Under the guard a draft that loses would rest, and plain be compared with plain."""
        return replace(self.settings, guard=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: a sentence, and a share from 0 to 1."""

    sentence: str
    share: float


@dataclass(frozen=True, slots=True)
class GreedyRow:
    """One prompt, greedy, on and off. compared: tokens found equal; the texts went on behind each tie."""

    name: str
    compared: int
    ties: tuple[Parting, ...]
    difference: Parting | None
    on: Stats
    wrote: tuple[str, str] = ("", "")
    """At the difference: what was written on, and off."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One outcome: its text, how often it came on and off, and its exact probability (None: not computed)."""

    text: str
    on: int
    off: int
    exact: float | None


@dataclass(slots=True)
class SampledLaw:
    """The sampling test. tests: on against off, and each against the exact law where it is known."""

    prompt: str
    before: str
    """The last words in front of the tested tokens."""
    first: int
    exact_first: int = 0
    """Tokens that the exact law covers."""
    n: int = 0
    on: Counter[Key] = field(default_factory=Counter)
    off: Counter[Key] = field(default_factory=Counter)
    cells: tuple[Cell, ...] = ()
    tests: tuple[Test, ...] = ()
    stats: Stats = field(default_factory=Stats)
    """Of the rounds with speculation on."""
    seconds: float = 0.0

    @property
    def threshold(self) -> float:
        """Each test's own level, so that all together stay at ALPHA."""
        return ALPHA / max(1, len(self.tests))

    @property
    def differs(self) -> bool:
        """Whether any test says that the laws differ."""
        return any(test.p < self.threshold for test in self.tests)


@dataclass(slots=True)
class Proof:
    """What was found; filled as it goes, so that a stopped one still says something."""

    plan: Plan
    greedy: list[GreedyRow] = field(default_factory=list)
    law: SampledLaw | None = None
    stopped: bool = False


def spelled(pair: Pair, ids: Sequence[int]) -> str:
    """Ids as text, an end of the reply by name."""
    text = text_of(pair.tokenizer, [i for i in ids if i not in pair.eos_ids])
    ends = any(i in pair.eos_ids for i in ids)
    return f"{text} (end of the reply)".strip() if ends else text or "(nothing visible)"
