"""Messages, and the two shapes of a conversation.

They are kept apart on purpose:

- `from_page` reads a history one to one, so that an index of the history is an index here.
- `normalise` makes what a chat template accepts. Blank turns are left out, whoever wrote them (a reply
  stopped before its first word is a blank turn), and neighbouring turns of one role become one turn, a blank
  line between the parts. `ChatTemplate.encode` does this itself; nobody has to remember it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

Role = Literal["system", "user", "assistant"]


class BadHistory(ValueError):
    """A history that is not a list of messages as the page or this package writes them."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `ids` are the token ids the model really wrote for `content` (replies only, end token aside).

    With them the next prompt repeats the reply as it was written instead of as it would be re-encoded, so
    what the caches hold stays valid. They are only used while their text equals `content`.
    """

    role: Role
    content: str
    ids: tuple[int, ...] | None = None


def is_blank(text: str) -> bool:
    """True when nothing in the text can be seen: white space, control and zero-width characters only."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def well_formed(text: str) -> str:
    """The text with lone surrogates (a browser may send half a pair) replaced by U+FFFD, pairs joined."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def from_page(history: Iterable[object]) -> list[Message]:
    """The page's history as messages, one for one.

    Takes `Message`s as they are, and dicts with "role" and "content", where content is text, a list of
    parts ({"type": "text", "text": …}; parts that are not text are left out) or None. Other keys are dropped.

    Raises:
        BadHistory: an entry is neither, or its role is unknown.
    """
    return [_read(entry) for entry in history]


def _read(entry: object) -> Message:
    if isinstance(entry, Message):
        return entry
    if not isinstance(entry, Mapping):
        raise BadHistory(
            f"A message must have a role and a content, and this one is a {type(entry).__name__}."
        )
    role = entry.get("role")
    if role not in get_args(Role):
        raise BadHistory(f"A message has the role {role!r}, and only {', '.join(get_args(Role))} are known.")
    return Message(cast(Role, role), well_formed(_flatten(entry.get("content"))))


def _flatten(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        text = content.get("text") if content.get("type", "text") == "text" else None
        return text if isinstance(text, str) else ""
    if isinstance(content, Iterable):
        return "\n".join(text for text in map(_flatten, content) if text)
    return ""


def normalise(history: Iterable[object]) -> list[Message]:
    """What a chat template is given: no blank turn, no two neighbouring turns of one role.

    Merged turns lose their `ids`. Takes what `from_page` takes; doing it twice changes nothing.
    """
    turns: list[Message] = []
    for message in from_page(history):
        if is_blank(message.content):
            continue
        if turns and turns[-1].role == message.role:
            message = Message(message.role, f"{turns.pop().content}\n\n{message.content}")
        turns.append(message)
    return turns
