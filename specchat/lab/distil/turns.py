"""What a chat template writes around the turns, as ids: found by rendering it, so that any such template will do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specchat.chat.conversation import Message
from specchat.chat.template import ChatTemplate
from specchat.model.errors import UnsupportedModel

_PROBES = ("x", "7", "Why")
"""Messages that share no id at either end."""
_ROOM = 100_000


@dataclass(frozen=True, slots=True)
class Turns:
    """Ids before the first message; from a message's end to the reply; from a reply's end to the next message."""

    opening: tuple[int, ...]
    to_reply: tuple[int, ...]
    to_user: tuple[int, ...]
    controls: frozenset[int]
    """Ids that no turn contains: drawing one ends it."""

    @property
    def user_end(self) -> int:
        """The control id by which the target ends a user's turn when it writes one itself."""
        return self.to_reply[0]

    @property
    def reply_end(self) -> int:
        """The control id that ends a reply."""
        return self.to_user[0]


def turns_of(template: ChatTemplate, controls: Collection[int]) -> Turns:
    """Raises UnsupportedModel where turns cannot be told apart, or do not end in a control id."""
    asked = {probe: _ids(template, probe) for probe in _PROBES}
    opening = _common(list(asked.values()))
    to_reply = _common([ids[::-1] for ids in asked.values()])[::-1]
    first = asked[_PROBES[0]]
    last = (*first[len(opening) :],)
    answered = []
    for probe in _PROBES:
        ids = _ids(template, _PROBES[0], probe, _PROBES[0])
        if ids[: len(first)] != first or ids[-len(last) :] != last:
            raise UnsupportedModel(
                "The draft cannot be trained on this target's own conversations: its chat template writes a turn "
                "differently once another follows. Choose another target."
            )
        answered.append(ids[len(first) : -len(last)])
    to_user = _common([ids[::-1] for ids in answered])[::-1]
    ends = (to_reply[:1], to_user[:1])
    if not opening or not all(end and end[0] in controls for end in ends):
        raise UnsupportedModel(
            "The draft cannot be trained on this target's own conversations: its chat template does not end both "
            "a user's turn and a reply with a control token, so nothing says where a turn that the target "
            "writes is over. Choose another target."
        )
    return Turns(opening, to_reply, to_user, frozenset(controls))


def _ids(template: ChatTemplate, *texts: str) -> tuple[int, ...]:
    """The prompt of a conversation whose turns alternate, the user's first."""
    messages = [Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]
    prompt = template.encode(messages, "", _ROOM)
    if prompt.notes or prompt.stop_strings:
        raise UnsupportedModel(
            "The draft is trained on conversations that the target writes in its own chat format, and this "
            f"target's cannot be used. {' '.join(prompt.notes)} Choose another target."
        )
    return prompt.ids


def _common(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The longest beginning that all rows share."""
    shortest = min(map(len, rows))
    n = next((i for i in range(shortest) if len({row[i] for row in rows}) > 1), shortest)
    return rows[0][:n]
