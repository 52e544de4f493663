"""How far a proposal goes: asked place by place, before anything of that place is drawn.

Whoever answers knows the laws so far and the ids drawn from them, never the id that is in question. So the reply keeps
the target's law: to leave out an id that was already drawn would bias it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Stopping(Protocol):
    """Decides where a proposal ends, whatever γ would still allow."""

    @property
    def looks(self) -> bool:
        """Whether it wants to know how sure a draft is of each place. The host then waits for every law."""
        ...

    def starts(self, kind: str) -> bool:
        """Whether one more forward of this kind of draft is worth its time. Asked by drafts that need one."""
        ...

    def takes(self, kind: str, sure: float | None) -> bool:
        """Whether one more id is drawn and proposed. kind: by what; sure: the probability of the likeliest id, None
        where that is not known or means nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Confident:
    """Stops where the likeliest id has less than this probability; 0 never stops."""

    least: float = 0.0

    @property
    def looks(self) -> bool:
        return self.least > 0

    def starts(self, kind: str) -> bool:
        return True

    def takes(self, kind: str, sure: float | None) -> bool:
        return sure is None or sure >= self.least


@dataclass(frozen=True, slots=True)
class Both:
    """Stops where either would; the second is not asked where the first stops."""

    first: Stopping
    second: Stopping

    @property
    def looks(self) -> bool:
        return self.first.looks or self.second.looks

    def starts(self, kind: str) -> bool:
        return self.first.starts(kind) and self.second.starts(kind)

    def takes(self, kind: str, sure: float | None) -> bool:
        return self.first.takes(kind, sure) and self.second.takes(kind, sure)


ALWAYS = Confident()
"""Goes on as long as γ allows."""
