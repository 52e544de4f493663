"""One browser tab: its conversation, its live settings, the reply it is waiting for.

The session is the truth, kept as raw text; what the page shows is rendered from it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from specchat.chat.conversation import Message
from specchat.chat.stream import Piece
from specchat.decode.events import Finished, Round
from specchat.ui.markdown import Growing
from specchat.ui.meter import Meter
from specchat.worker import Event, Handle, Live, Queued, Reading, Step

KEPT_SESSIONS = 500
"""Tabs remembered when nothing tells that they were closed."""


@dataclass(slots=True)
class Reply:
    """A reply being written, or written: text, tokens, numbers, and how it ended."""

    meter: Meter = field(default_factory=Meter)
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ahead: int | None = None
    """Replies to be written before this one; None once its turn has come."""
    reading: Reading | None = None
    finished: Finished | None = None
    growing: Growing = field(default_factory=Growing)
    ids: tuple[int, ...] | None = None

    @property
    def done(self) -> bool:
        """No more will come."""
        return self.finished is not None

    @property
    def failed_at_once(self) -> bool:
        """An error came instead of the first word."""
        return self.finished is not None and self.finished.reason == "error" and not self.text

    def fail(self, sentence: str) -> None:
        """Ends the reply with an error told in a sentence; what was written is kept."""
        self.finished = Finished("error", len(self.pieces), self.meter.stats.elapsed_s, 0, 0, sentence)

    def take(self, event: Event) -> None:
        """Adds what the worker sent."""
        if isinstance(event, Queued):
            self.ahead = event.ahead
        elif isinstance(event, Reading):
            self.ahead, self.reading = None, event
        elif isinstance(event, Step):
            self.meter.add(event.round)
            self.rounds.append(event.round)
            self.pieces += event.pieces
            self.text += "".join(piece.text for piece in event.pieces)
        else:
            self.text += event.tail
            if event.message.content == self.text:
                self.ids = event.message.ids
            self.finished = event.finished


@dataclass(slots=True)
class Turn:
    """What a person asked and what came back."""

    user: str
    reply: Reply


@dataclass(slots=True)
class Session:
    """Everything one tab owns. Its handlers run one at a time, except that sliders and Stop may come any time."""

    live: Live
    turns: list[Turn] = field(default_factory=list)
    system: str = ""
    handle: Handle | None = None
    editing: int | None = None
    lens: bool = False
    rejected: bool = False
    shown: tuple[str, str] = ("", "")
    """Status line and panel as last sent while idle: they are only sent again when they changed."""
    knows_pair: int = 0
    busy: bool = False
    """A reply is on its way."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self) -> bool:
        """Begins a reply, unless one is on its way."""
        with self.lock:
            if self.busy:
                return False
            self.busy = True
            return True

    def release(self) -> None:
        """The reply is over, whatever ended it; its job is cancelled in case it is not."""
        if self.handle is not None:
            self.handle.cancel()
        self.handle = None
        if self.turns and not self.turns[-1].reply.done:
            self.turns[-1].reply.finished = Finished("cancelled", 0, 0.0, 0, 0)
        self.busy = False

    def messages(self) -> list[Message]:
        """The conversation for the next request, ending in the last user turn.

        An earlier message whose reply failed before its first word is left out: it may be what made it fail.
        """
        messages: list[Message] = []
        for turn in self.turns:
            if turn.reply.failed_at_once and turn is not self.turns[-1]:
                continue
            messages.append(Message("user", turn.user))
            if turn.reply.text:
                messages.append(Message("assistant", turn.reply.text, turn.reply.ids))
        return messages

    def ask(self, text: str) -> Turn:
        """Appends a turn to be answered; when a turn is being edited, it and what follows are replaced."""
        if self.editing is not None:
            del self.turns[self.editing :]
            self.editing = None
        turn = Turn(text, Reply())
        self.turns.append(turn)
        return turn


class Sessions:
    """Every tab's session, by the tab's session hash. Thread-safe."""

    def __init__(self, new: Callable[[], Session]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._by_hash: OrderedDict[str, Session] = OrderedDict()

    def of(self, key: str | None) -> Session:
        """The session of a tab; a new one on first sight."""
        with self._lock:
            session = self._by_hash.get(key or "")
            if session is None:
                session = self._by_hash[key or ""] = self._new()
            self._by_hash.move_to_end(key or "")
            for old in list(self._by_hash):
                if len(self._by_hash) <= KEPT_SESSIONS:
                    break
                if not self._by_hash[old].busy:
                    del self._by_hash[old]
            return session

    def close(self, key: str | None) -> None:
        """A tab was closed: its reply is cancelled, its conversation forgotten."""
        with self._lock:
            session = self._by_hash.pop(key or "", None)
        if session is not None and session.handle is not None:
            session.handle.cancel()
