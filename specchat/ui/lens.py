"""The token lens: a reply as its tokens, each showing where it came from. Everything escaped."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from specchat.decode.events import Origin, Rejected, Round
from specchat.ui.session import Reply

LOOK: dict[Origin, str] = {"accepted": "a", "recovered": "r", "bonus": "b", "plain": "p"}

MEANING: dict[Origin, str] = {
    "accepted": "accepted: proposed by {source}, kept by the target",
    "recovered": "recovered: the target's own token at the first rejection",
    "bonus": "bonus: the target's extra token after a block that was kept whole",
    "plain": "plain: the target's token in a round without a proposal",
}


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
            token = piece.token
            if token.position == 0 and event.settings_changed:
                parts.append('<b class="sc-moment" title="new settings from here">new settings</b>')
            if self._spell is not None and event.rejected and token.position == event.rejected.position:
                parts += _turned_down(event, event.rejected, self._spell)
            meaning = MEANING[token.origin].format(source=source(event))
            tip = f"{meaning} · {chances(token.p, token.q)} · {place(event, token.position)}"
            parts.append(
                f'<i class="sc-t sc-{LOOK[token.origin]}" title="{escape(tip)}">{visible(piece.text)}</i>'
            )
        self._pieces = len(reply.pieces)
        self.html += "".join(parts)


def _turned_down(event: Round, rejected: Rejected, spell: Callable[[int], str]) -> list[str]:
    """The proposals of a round from its first rejection on, struck through."""
    return [
        f'<s class="sc-t sc-x" title="{escape(_fate(event, rejected, i))}">{visible(spell(id))}</s>'
        for i, id in enumerate((rejected.id, *event.discarded))
    ]


def _fate(event: Round, rejected: Rejected, i: int) -> str:
    where = place(event, rejected.position + i)
    if i == 0:
        return f"rejected: proposed by {source(event)}, turned down · {chances(rejected.p, rejected.q)} · {where}"
    return f"not judged: proposed behind a rejection · {where}"


def source(event: Round) -> str:
    """Who proposed in this round, in words."""
    return {"model": "the draft model", "ngram": "text seen before"}.get(
        event.drafter, event.drafter or "the draft"
    )


def chances(p: float, q: float | None) -> str:
    """p of the target and q of the draft, as percentages."""
    return f"p {_chance(p)}" + ("" if q is None else f" · q {_chance(q)}")


def _chance(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1e}"


def place(event: Round, position: int) -> str:
    """Where in the reply: "place 2 of the block · round 17"."""
    return f"place {position + 1} · round {event.index + 1}"


def visible(text: str) -> str:
    """A token's text with its line ends made visible; a token without text of its own (half a character) is a dot."""
    if not text:
        return '<span class="sc-mark">·</span>'
    return escape(text).replace("\n", '<span class="sc-mark">↵</span>\n')
