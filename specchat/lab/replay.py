"""A recorded reply once more, by its own clock. Pure: whoever plays it says how much time has passed."""

from __future__ import annotations

from specchat.lab.record_parts import Beat, Record

SPEEDS = (0.5, 1.0, 2.0, 4.0)


class Replay:
    """Where a replay stands: seconds since the request, and the rounds given out so far."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.position = 0.0
        self.given = 0

    @property
    def done(self) -> bool:
        """Every round has been given out."""
        return self.given == len(self.record.beats)

    @property
    def wait(self) -> float:
        """Recorded seconds until the next round; 0 when there is none."""
        return 0.0 if self.done else max(0.0, self.record.beats[self.given].round.at - self.position)

    def advance(self, seconds: float) -> tuple[Beat, ...]:
        """Recorded time passes: the rounds that ended in it."""
        return self._to(self.position + max(0.0, seconds))

    def finish(self) -> tuple[Beat, ...]:
        """The rest at once."""
        return self._to(self.record.seconds)

    def restart(self) -> None:
        """Back to the request."""
        self.position, self.given = 0.0, 0

    def _to(self, position: float) -> tuple[Beat, ...]:
        beats, first = self.record.beats, self.given
        while self.given < len(beats) and beats[self.given].round.at <= position:
            self.given += 1
        self.position = min(position, self.record.seconds)
        return beats[first : self.given]
