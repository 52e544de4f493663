"""The reply being written: what of the page changes with each batch of events."""

from __future__ import annotations

import time
from functools import partial
from typing import Literal

from specchat.ui.desk import Desk
from specchat.ui.lens import Lens
from specchat.ui.session import Reply, Session
from specchat.ui.transcript import OPENING

Part = Literal["live", "panel", "status"]

TEMPLATE = "${value.before}${value.settled}${value.tail}${value.after}"
"""Gradio puts values into this as they are and evaluates nothing in them; all four are escaped HTML."""

NOTHING = {"before": "", "settled": "", "tail": "", "after": ""}

HINT_S = 3.0
"""A hint stands so long before the status line tells of the reply again."""

PANEL_EVERY = 3
"""The panel changes with every third update: faster could not be read."""


def hinted(session: Session) -> bool:
    """Whether a hint stands in the status line and has not been read long enough."""
    return time.monotonic() < session.hinted + HINT_S


class LiveView:
    """Follows one reply, as text or as tokens. `settled` only grows, so an update is an append and a short tail."""

    def __init__(self, desk: Desk, session: Session, reply: Reply) -> None:
        self._desk = desk
        self._session = session
        self._reply = reply
        self._kind: tuple[bool, bool] | None = None
        self._lens = Lens()
        self._looks = 0

    def look(self, news: bool) -> dict[Part, object]:
        """The parts that are not as they were at the last call. news: events have arrived since."""
        found: dict[Part, object] = {}
        status = self._desk.status(self._session)
        if status != self._session.shown[0] and not hinted(self._session):
            self._session.shown = (status, "")
            found["status"] = status
        kind = (self._session.lens, self._session.rejected)
        if not news and kind == self._kind:
            return found
        if kind != self._kind:
            self._kind, self._lens = kind, Lens(partial(self._desk.spell, self._reply) if kind[1] else None)
        if self._reply.rounds:
            if self._looks % PANEL_EVERY == 0:
                found["panel"] = self._desk.panel(self._session)
            self._looks += 1
        found["live"] = self._text()
        return found

    def _text(self) -> dict[str, str]:
        if self._session.lens:
            self._lens.update(self._reply)
            look, settled, tail = "sc-lens", self._lens.html, ""
        else:
            growing = self._reply.growing
            growing.update(self._reply.text)
            look, settled, tail = "sc-text", growing.settled, growing.tail
        before = f'{OPENING}<div class="{look} sc-writing">'
        return {"before": before, "settled": settled, "tail": tail, "after": "</div></div>"}
