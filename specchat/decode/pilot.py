"""Who chooses γ when it is not fixed: adaptive γ, the guard, or both. One pilot for each drafter of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specchat.decode.adaptive import Adaptive
from specchat.decode.events import Round
from specchat.decode.guard import Guard
from specchat.decode.settings import Settings
from specchat.decode.stopping import Both, Confident, Stopping


@dataclass(slots=True)
class Pilot:
    """What was measured with one drafter; it outlives a reply."""

    adaptive: Adaptive = field(default_factory=Adaptive)
    guard: Guard = field(default_factory=Guard)
    _settings: Settings | None = None

    def choose(self, settings: Settings) -> tuple[int, str]:
        """The most proposals of the next round, 0…settings.gamma, and the reason in words."""
        self._notice(settings)
        if settings.guard and self.guard.resting:
            return self.guard.choose(settings.gamma)
        gamma, why = self.adaptive.choose(settings.gamma) if settings.adaptive else (settings.gamma, "")
        if settings.guard and gamma:
            gamma, said = self.guard.choose(gamma)
            if gamma == 0 or not why:
                return gamma, said or self.guard.watching()
            why = "; ".join(filter(None, (said, why)))
        return gamma, why

    def stopping(self, settings: Settings) -> Stopping:
        """Where the next block ends before γ."""
        confident = Confident(settings.confidence)
        return Both(self.adaptive, confident) if settings.adaptive else confident

    def learn(self, event: Round) -> None:
        """Takes in the round that was just run, whoever of the two chose its γ."""
        assert self._settings is not None, "learn follows choose"
        if self._settings.adaptive:
            self.adaptive.learn(event)
        if self._settings.guard:
            self.guard.learn(event)

    def rests(self, settings: Settings) -> bool:
        """Whether a request would begin without the draft: then it need not read the prompt yet."""
        self._notice(settings)
        return (settings.guard and self.guard.resting) or (settings.adaptive and self.adaptive.idle)

    def _notice(self, settings: Settings) -> None:
        """Forgets what settings of another kind have measured."""
        if settings is self._settings:
            return
        before, self._settings = self._settings, settings
        if before is None:
            return
        if _law(settings) != _law(before):
            self.adaptive.forget_text()
            self.guard.forget()
        elif settings.gamma != before.gamma or settings.adaptive != before.adaptive:
            self.guard.forget()


def _law(settings: Settings) -> tuple[object, ...]:
    """What acceptance depends on, beside the text."""
    draft = settings.draft_sampling
    return (
        replace(settings.sampling, seed=None),
        draft and replace(draft, seed=None),
        settings.confidence,
    )
