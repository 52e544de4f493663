"""The reply being written: what of the page changes with each batch of events."""

from __future__ import annotations

import time
from functools import partial
from typing import NotRequired, TypedDict

from specchat.ui.desk import Desk
from specchat.ui.lens import Lens
from specchat.ui.session import Reply, Session
from specchat.ui.transcript import OPENING


class Text(TypedDict):
    """What changes of the reply's own part of the page, as escaped HTML: `more` comes to stay, behind what has come
    before; `tail` stands behind it until the next. With `opening` everything begins anew."""

    opening: NotRequired[str]
    more: str
    tail: str


class Seen(TypedDict, total=False):
    """The parts of the page that are not as they were."""

    text: Text
    panel: str
    status: str


HINT_S = 3.0
"""A hint stands so long before the status line tells of the reply again."""

PANEL_EVERY = 3
"""The panel changes with every third update, from the second on: faster could not be read, and the first tells of one
round."""


def hinted(session: Session) -> bool:
    """Whether a hint stands in the status line and has not been read long enough."""
    return time.monotonic() < session.hinted + HINT_S


class LiveView:
    """Follows one reply, as text or as tokens. An update is an append and a short tail."""

    def __init__(self, desk: Desk, session: Session, reply: Reply) -> None:
        self._desk = desk
        self._session = session
        self._reply = reply
        self._kind: tuple[bool, bool] | None = None
        self._lens = Lens()
        self._looks = 0
        self._told = 0
        """Characters of the settled text that have been told."""

    def look(self, news: bool) -> Seen:
        """The parts that are not as they were at the last call. news: events have arrived since."""
        found: Seen = {}
        status = self._desk.status(self._session)
        if status != self._session.shown[0] and not hinted(self._session):
            self._session.shown = (status, "")
            found["status"] = status
        kind = (self._session.lens, self._session.rejected)
        if not news and kind == self._kind:
            return found
        anew = kind != self._kind
        if anew:
            self._kind, self._told = kind, 0
            self._lens = Lens(partial(self._desk.spell, self._reply) if kind[1] else None)
        if self._reply.rounds:
            if self._looks % PANEL_EVERY == 1:
                found["panel"] = self._desk.panel(self._session)
            self._looks += 1
        found["text"] = self._text()
        if anew:
            look = "sc-lens" if kind[0] else "sc-text"
            found["text"]["opening"] = f'{OPENING}<div class="{look} sc-writing"></div></div>'
        return found

    def _text(self) -> Text:
        if self._session.lens:
            self._lens.update(self._reply)
            settled, tail = self._lens.html, ""
        else:
            growing = self._reply.growing
            growing.update(self._reply.text)
            settled, tail = growing.settled, growing.tail
        more, self._told = settled[self._told :], len(settled)
        return {"more": more, "tail": tail}
