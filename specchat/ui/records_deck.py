"""What one page's Records tab holds: the records taken up, and where their replay stands. No Gradio."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from specchat.chat.conversation import Message
from specchat.chat.stream import Piece
from specchat.decode.events import Finished
from specchat.lab.record_parts import Beat, Record
from specchat.lab.replay import Replay
from specchat.ui.lens import Lens
from specchat.ui.session import Reply
from specchat.worker import Done, Step


class Deck:
    """The record being shown, the one it is compared with, and the replay's clock.

    One handler plays while others steer it: each holds the lock while it changes or shows the deck.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records: tuple[Record, ...] = ()  # of the file that was opened; `chosen` is the one shown
        self.chosen = 0
        self.other: Record | None = None
        self.speed = 1.0
        self.lens = self.rejected = False
        self.playing = False
        self.run = 0  # number of the loop that plays: an older one ends when it sees another
        self.replay: Replay | None = None
        self.reply = Reply()
        self.tokens = Lens()
        self._last = 0.0
        self._spelled: dict[int, str] = {}

    def __deepcopy__(self, memo: object) -> Deck:
        """Gradio copies a State's first value for every page: each begins empty."""
        return Deck()

    @property
    def record(self) -> Record | None:
        """The record being shown."""
        return self.records[self.chosen] if self.records else None

    def take(self, records: tuple[Record, ...]) -> None:
        """Takes up other records and shows the last of them, whole."""
        self.records = records
        self.choose(len(records) - 1)

    def choose(self, n: int) -> None:
        """Shows another of the records, whole."""
        self.chosen = min(max(n, 0), len(self.records) - 1)
        record = self.records[self.chosen]
        self.replay, self._spelled = Replay(record), record.spelled()
        self.finish()

    def look(self, lens: bool, rejected: bool) -> None:
        """Text or tokens, with or without what was turned down."""
        self.lens, self.rejected = lens, rejected
        self._new_lens()

    def play(self) -> int:
        """Begins to play, from the start when it was at its end; returns the number of this run."""
        if self.replay is None or self.replay.done:
            self.restart()
        self.run, self.playing, self._last = self.run + 1, True, time.perf_counter()
        return self.run

    def plays(self, run: int) -> bool:
        """Whether this run goes on."""
        return self.playing and self.run == run

    def pause(self) -> None:
        """Stops where it is."""
        self.playing = False

    def restart(self) -> None:
        """Back to the request."""
        self._begin()
        if self.replay is not None:
            self.replay.restart()

    def finish(self) -> None:
        """Everything at once."""
        self.restart()
        if self.replay is not None:
            self._add(self.replay.finish())
        self.playing = False

    def tick(self) -> bool:
        """As much as has passed since the last tick, times the speed; whether a round has come."""
        now = time.perf_counter()
        passed, self._last = (now - self._last) * self.speed, now
        if self.replay is None:
            return False
        beats = self.replay.advance(passed)
        self._add(beats)
        return bool(beats)

    def spell(self, id: int) -> str:
        """The text of a proposal that was turned down."""
        return self._spelled.get(id, "")

    def _begin(self) -> None:
        self.reply = Reply()
        self._new_lens()

    def _new_lens(self) -> None:
        self.tokens = Lens(self.spell if self.rejected else None)

    def _add(self, beats: Iterable[Beat]) -> None:
        """The rounds, as the chat takes them; after the last one the end."""
        for beat in beats:
            event = beat.round
            pieces = tuple(
                Piece(text, token, event.index) for text, token in zip(beat.texts, event.tokens, strict=True)
            )
            self.reply.take(Step(event, pieces))
        record, replay = self.record, self.replay
        if record is None or replay is None or not replay.done:
            return
        self.playing = False
        finished = record.finished or Finished("cancelled", len(record.ids), record.seconds, 0, 0)
        if not self.reply.done:
            self.reply.take(Done(finished, Message("assistant", ""), self.reply.meter.stats, record.tail))
