"""Tokens as HTML: each shows where it came from, and tells it in words under the pointer. Everything escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from specchat.decode.events import Origin, Round, Token

LOOK: Mapping[Origin, str] = {"accepted": "a", "recovered": "r", "bonus": "b", "plain": "p"}

MEANING: Mapping[Origin, str] = {
    "accepted": "accepted: proposed by {source}, kept by the target",
    "recovered": "recovered: the target's own token at the first rejection",
    "bonus": "bonus: the target's extra token after a block that was kept whole",
    "plain": "plain: the target's token in a round without a proposal",
}

MOMENT = '<b class="sc-moment" title="new settings from here">new settings</b>'
"""Stands where other settings took effect."""


def token(event: Round, of: Token, text: str) -> str:
    """One emitted token."""
    meaning = MEANING[of.origin].format(source=source(event))
    tip = f"{meaning} · {chances(of.p, of.q)} · {place(event, of.position)}"
    return f'<i class="sc-t sc-{LOOK[of.origin]}" title="{escape(tip)}">{visible(text)}</i>'


def turned_down(event: Round, texts: Sequence[str]) -> str:
    """The proposals of a round from its first rejection on, struck through; "" without any."""
    return "".join(
        f'<s class="sc-t sc-x" title="{escape(_fate(event, i))}">{visible(text)}</s>'
        for i, text in enumerate(texts)
    )


def _fate(event: Round, i: int) -> str:
    rejected = event.rejected
    assert rejected is not None
    where = place(event, rejected.position + i)
    if i == 0:
        return f"rejected: proposed by {source(event)}, turned down · {chances(rejected.p, rejected.q)} · {where}"
    return f"not judged: proposed behind a rejection · {where}"


def source(event: Round) -> str:
    """Who proposed in this round, in words."""
    return {"model": "the draft model", "ngram": "n-grams of the text"}.get(
        event.drafter, event.drafter or "the draft"
    )


def chances(p: float, q: float | None) -> str:
    """p of the target and q of the draft, as fractions of 1."""
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
