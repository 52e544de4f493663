"""One browser tab: its conversation, its live settings, the reply it is waiting for.

The session is the truth, kept as raw text; what the page shows is rendered from it.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field

from specchat.chat.conversation import Message
from specchat.chat.stream import Piece
from specchat.decode.engine import Settings
from specchat.decode.events import Finished, Round
from specchat.lab.record_parts import PairFacts
from specchat.ui.markdown import Growing
from specchat.ui.meter import Meter
from specchat.worker import Done, Event, Handle, Job, Live, Queued, Reading, Step


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
    job: Job | None = None
    """What was asked; with the two below, what a record needs to know."""
    pair: PairFacts | None = None
    pair_number: int = 0
    """`Pair.number` of the pair that writes it; 0: not known."""
    in_force: list[Settings | None] = field(default_factory=list)
    """The settings of each round."""

    @property
    def done(self) -> bool:
        """No more will come."""
        return self.finished is not None

    @property
    def failed_at_once(self) -> bool:
        """An error came instead of the first word."""
        return self.finished is not None and self.finished.reason == "error" and not self.text

    def so_far(self) -> Reply:
        """What has been written up to now, as a reply that was stopped here; this one goes on."""
        other = Reply(pieces=list(self.pieces), rounds=list(self.rounds), reading=self.reading)
        other.text = "".join(piece.text for piece in other.pieces)
        for event in other.rounds:
            other.meter.add(event)
        other.job, other.pair, other.in_force = self.job, self.pair, list(self.in_force)
        other.pair_number = self.pair_number
        other.finished = Finished("cancelled", len(other.pieces), other.meter.stats.elapsed_s, 0, 0)
        return other

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
            self.in_force.append(event.settings)
            self.text += "".join(piece.text for piece in event.pieces)
        elif isinstance(event, Done):
            self.text += event.tail
            if event.message.content == self.text:
                self.ids = event.message.ids
            self.finished = event.finished


@dataclass(slots=True)
class Turn:
    """What a person asked and what came back."""

    user: str
    reply: Reply


PATIENCE_S = 10.0
"""A reply that the page has not come to follow by then is ended."""


@dataclass(slots=True)
class Session:
    """Everything one tab owns. Sliders, Stop and the end of the page may come at any time."""

    live: Live
    turns: list[Turn] = field(default_factory=list)
    system: str = ""
    values: tuple[object, ...] = ()
    """The sidebar's controls as last set, in their order; () as long as nobody has touched them."""
    tab: str | None = None
    """The page load that shows it; None while none does."""
    handle: Handle | None = None
    """The job of the reply on its way."""
    unseen: tuple[Reply, Handle] | None = None
    """A reply that was begun and that the page has not asked to follow yet."""
    ticket: str = ""
    """Of the last reply: what the page asks for it with; known to it alone, and good once."""
    _patience: threading.Timer | None = None
    tasks: dict[str, Handle] = field(default_factory=dict)
    """What the lab is measuring for this tab, by the name of its kind."""
    editing: int | None = None
    lens: bool = False
    rejected: bool = False
    shown: tuple[str, str] = ("", "")
    """Status line and panel as last sent while idle: they are only sent again when they changed."""
    hinted: float = 0.0
    """When a hint was last put into the status line, by the monotonic clock."""
    knows_pair: int = 0
    muted: int = 0
    """The γ that a pair without drafters put out of force."""
    busy: bool = False
    """A reply is on its way."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def copy(self) -> Session:
        """The same conversation and settings, from here on apart; a reply on its way is stopped in the copy."""
        turns = [
            turn if turn.reply.done else Turn(turn.user, turn.reply.so_far()) for turn in list(self.turns)
        ]
        return Session(
            Live(self.live.get()), turns, self.system, self.values, lens=self.lens, rejected=self.rejected
        )

    def as_loaded(self) -> None:
        """The page that shows it begins anew: what was sent to an earlier one does not count."""
        self.editing, self.shown, self.knows_pair = None, ("", ""), 0

    def claim(self) -> bool:
        """Begins a reply, unless one is on its way."""
        with self.lock:
            if self.busy:
                return False
            self.busy = True
            return True

    def offer(self, reply: Reply, handle: Handle) -> str:
        """The page is to follow this reply now, with the ticket returned. One that does not come is a page that is gone."""
        patience = threading.Timer(PATIENCE_S, self.abandon, (handle,))
        patience.daemon = True
        with self.lock:
            self.handle, self.unseen, self._patience = handle, (reply, handle), patience
            ticket = self.ticket = secrets.token_urlsafe(16)
        patience.start()
        return ticket

    def taken(self, ticket: str) -> tuple[Reply, Handle] | None:
        """The reply of this ticket, if it was begun and nobody follows it yet: the caller's from now on."""
        with self.lock:
            return self._take() if ticket and ticket == self.ticket else None

    def abandon(self, handle: Handle | None = None) -> bool:
        """Ends the reply that nobody follows yet (only the one of this job); says whether there was one."""
        with self.lock:
            found = self._take() if self.unseen and handle in (None, self.unseen[1]) else None
        if found is not None:
            self.release(found[1])
        return found is not None

    def _take(self) -> tuple[Reply, Handle] | None:
        found, self.unseen = self.unseen, None
        if self._patience is not None:
            self._patience.cancel()
        return found

    def release(self, handle: Handle | None) -> None:
        """The reply of this job (None: one without) is over, whatever ended it; its job is cancelled in case it is not."""
        with self.lock:
            if self.handle is not handle:
                return
            self.handle = None
        if handle is not None:
            handle.cancel()
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
