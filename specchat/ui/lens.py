"""The token lens: a reply as its tokens, each showing where it came from. Everything escaped."""

from __future__ import annotations

from collections.abc import Callable

from specchat.lab.export_tokens import MOMENT, token, turned_down
from specchat.ui.session import Reply

LEGEND = (
    '<div class="sc-legend-line"><span><i class="sc-t sc-a">accepted</i> from the draft</span>'
    '<span><i class="sc-t sc-r">recovered</i> <i class="sc-t sc-b">bonus</i> <i class="sc-t sc-p">plain</i> '
    'from the target</span><span><s class="sc-t sc-x">rejected</s></span><b class="sc-detail"></b></div>'
)
"""What the looks mean; the page's script shows the token under the pointer in its place."""


class Lens:
    """A reply's tokens as HTML that only grows, so that an update costs the new tokens only."""

    def __init__(self, spell: Callable[[int], str] | None = None) -> None:
        """spell: id → text, to show the proposals that were turned down; None leaves them out."""
        self._spell = spell
        self.html = ""
        self._pieces = 0

    def update(self, reply: Reply) -> None:
        """Adds the tokens that came since the last call."""
        parts: list[str] = []
        for piece in reply.pieces[self._pieces :]:
            event = reply.rounds[piece.round_index]
            place = piece.token.position
            if place == 0 and event.settings_changed:
                parts.append(MOMENT)
            if self._spell is not None and event.rejected and place == event.rejected.position:
                ids = (event.rejected.id, *event.discarded)
                parts.append(turned_down(event, [self._spell(id) for id in ids]))
            parts.append(token(event, piece.token, piece.text))
        self._pieces = len(reply.pieces)
        self.html += "".join(parts)
