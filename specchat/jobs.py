"""What goes into the worker and what comes out: a job with its live settings, and the events of its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specchat.chat.conversation import Message
from specchat.chat.stream import Piece
from specchat.decode.engine import Settings
from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats

State = Literal["loading", "ready", "busy", "failed"]


class Live:
    """The settings in force, shared by a page (which sets them) and the engine (which reads them once a round)."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()

    def get(self) -> Settings:
        """The settings as they are now."""
        return self._settings

    def set(self, settings: Settings) -> None:
        """Takes effect at the next round of a reply in flight. Replaces one immutable value by another."""
        self._settings = settings


@dataclass(frozen=True, slots=True)
class Job:
    """A conversation to be continued. messages ends with the user's turn."""

    messages: tuple[Message, ...]
    live: Live
    system: str = ""
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Queued:
    """Waiting: how many jobs are served before this one."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt is about to be read: its length in ids, whole turns dropped to make it fit, remarks."""

    prompt_tokens: int
    dropped_turns: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One round, and the text that each of its tokens completed."""

    round: Round
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The end. message is the reply as a turn of the conversation; finished.notice may hold a sentence."""

    finished: Finished
    message: Message
    stats: Stats
    tail: str = ""
    """The last piece of text, which no token completed (a held-back stop prefix, half a character)."""


Event = Queued | Reading | Step | Done


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a page shows before and between replies."""

    state: State
    message: str
    waiting: int
    seconds: float
    """Seconds since the state was entered."""
