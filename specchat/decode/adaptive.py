"""Adaptive γ: the number of proposals that is expected to give the most tokens a second.

Not the longest acceptance: a proposal that is kept half of the time still loses where it costs more than it saves.
γ is chosen from the rounds before, hence before anything of the round is drawn, and the reply keeps the target's law.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.decode.estimates import Estimates, Outlook, words
from specchat.decode.events import Round

START = 4
"""γ of the first round, when the slider lets it."""

EVERY = 4
"""Rounds between two looks at the estimates."""

SHARE = 0.01
"""Of all time, what may be lost by trying another γ."""

APART = 12
"""At least so many rounds lie between two tries."""

BETTER = 1.005
"""Another γ has to promise this much more before it takes over."""


@dataclass(slots=True)
class Adaptive:
    """Chooses γ in 0…most round by round; learns from every round, also from those that others chose."""

    estimates: Estimates = field(default_factory=Estimates)
    best: int = -1
    """The γ in force; -1 before the first choice."""
    _most: int = -1
    _opening: list[int] = field(default_factory=list)
    _outlook: Outlook | None = None
    _why: str = ""
    _since_look: int = 0
    _since_try: int = 0
    _turn: int = 0
    _purse: float = 0.0
    """Seconds that may be lost by tries."""
    _trying: tuple[int, float, float] | None = None
    """γ of a try that is under way, the tokens it is expected to bring, and the best speed."""

    def choose(self, most: int) -> tuple[int, str]:
        """γ for the next round and the reason in words. `most` may be another one each time."""
        if most != self._most:
            self._begin(most)
        if self._opening:
            return min(self._opening.pop(), most), "measuring each part of a round"
        if self._outlook is None or self._since_look >= EVERY:
            self._look()
        other = self._try()
        if other is not None:
            now = f"γ {self.best}" if self.best else "plain decoding"
            return other, f"tried once; so far {now} is best, {self._why}"
        return self.best, self._why

    def learn(self, event: Round) -> None:
        """Takes in one more round."""
        self.estimates.learn(event)
        self._since_look += 1
        self._since_try += 1
        self._purse += SHARE * event.seconds
        if self._trying is not None:
            gamma, tokens, speed = self._trying
            if event.gamma == gamma and speed > 0:
                self._purse -= max(0.0, event.seconds - tokens / speed)
            self._trying = None

    def forget_text(self) -> None:
        """Other sampling or another confidence is in force."""
        self.estimates.forget_text()
        self._outlook = None

    def _begin(self, most: int) -> None:
        """The first time, a few rounds that show what rows and drafts cost; afterwards only another limit."""
        if self._most < 0:
            start = min(START, most)
            # Taken from the end: the first round's times do not count, then plain, whole, half.
            self._opening = [max(1, start // 2), start, 0, start]
        self._most = most
        self.best = min(self.best, most)
        self._outlook = None

    def _look(self) -> None:
        outlook = self._outlook = self.estimates.outlook(self._most)
        self._since_look = 0
        # Deeper places than were tried are guesses: step by step.
        most = self._most if self.best < 0 else min(self._most, self.best + max(2, self.best // 2))
        top = max(range(most + 1), key=outlook.speed)
        if self.best < 0 or outlook.speed(top) > BETTER * outlook.speed(self.best):
            self.best = top
        beside = [g for g in (self.best - 1, self.best + 1) if 0 < g <= self._most]
        others = words(outlook, [*beside, *([0] if self.best else [])])
        self._why = f"{outlook.speed(self.best):.1f} tok/s expected ({others})"

    def _try(self) -> int | None:
        """Now and then a neighbour, when its expected loss has been saved up."""
        if self._since_try < APART or self._outlook is None:
            return None
        steps = (1, -1, 2) if self.best else (1, 2, 1)
        gamma = self.best + steps[self._turn % 3]
        if not 0 <= gamma <= self._most:
            self._turn += 1
            return None
        outlook, speed = self._outlook, self._outlook.speed(self.best)
        loss = outlook.seconds[gamma] - outlook.tokens[gamma] / speed if speed > 0 else 0.0
        if loss > self._purse:
            return None
        self._turn += 1
        self._since_try = 0
        self._trying = (gamma, outlook.tokens[gamma], speed)
        return gamma
