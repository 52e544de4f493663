"""Conversation → prompt ids, through the model's own chat template.

What holds for every prompt:

- A conversation without typed control strings gets exactly the ids of the rendered template, encoded whole.
- The control ids in it are those the template writes; typed ones stay ordinary text (see `controls`).
- A reply that carries its ids is repeated as it was written, so the next prompt begins with the last prompt
  and the reply, id for id, and the caches stay valid.
- Of a conversation that does not fit, the oldest turns are left out, several at once (see `window`).
- What the template refuses is worked round and said in a note; it is never a traceback.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from specchat.chat.controls import ControlCodec, Seal
from specchat.chat.conversation import Message, is_blank, normalise, well_formed
from specchat.chat.stream import text_of
from specchat.chat.window import Sizes, first_kept, left_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FALLBACK_STOPS = ("\nUser:",)
NO_TEMPLATE = (
    "This model has no chat template (it may be a base model), so the conversation is given to it as plain "
    "text: “User: …”, “Assistant: …”."
)
REFUSED = (
    "This model's chat template refused the conversation ({}), so it is given to the model as plain text."
)
FOLDED = "This model's chat template takes no system prompt, so it was put before the first message."


class PromptTooLong(ValueError):
    """The last message alone does not fit."""


class NothingToAnswer(ValueError):
    """The conversation does not end in a message of the user."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as the model reads it."""

    ids: tuple[int, ...]
    dropped_turns: int
    """Oldest turns (a message and its reply) left out to make it fit."""
    notes: tuple[str, ...]
    """Sentences for the person: what was left out or worked round."""
    stop_strings: tuple[str, ...] = ()
    """Where the reply must end, besides the end ids: not empty only in the fallback format."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """One try at a prompt, before it is known to fit."""

    ids: tuple[int, ...]
    notes: tuple[str, ...]
    stop_strings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rendered:
    """What a template wrote, typed texts sealed."""

    text: str
    notes: tuple[str, ...] = ()
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Turn:
    """One message as the template gets it: sealed text, with marks around it when `ids` take its place."""

    role: str
    text: str
    ids: tuple[int, ...] | None = None


class ChatTemplate:
    """The chat format of one model. `eos_ids`: ids that end a reply, control tokens whatever their flags."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._codec = ControlCodec(tokenizer, eos_ids)
        self._has_template = bool(tokenizer.chat_template)
        bos = tokenizer.bos_token_id
        default = list(tokenizer("")["input_ids"])
        self._default_bos = bos if bos is not None and default[:1] == [bos] else None
        self._gap = self._space_before_reply() if self._has_template else ""

    def encode(self, messages: Iterable[object], system: str, room: int) -> Prompt:
        """The prompt that asks for a reply to the last message, in at most `room` ids.

        messages: as `conversation.normalise` takes them; they must end in a user turn. system: the system
        prompt; blank means the template's own default. System turns among the messages are added to it. When
        all does not fit, the oldest turns go, never the system prompt: as many as `window.first_kept` says,
        and more if the ids themselves still do not fit.

        Raises:
            NothingToAnswer: no user turn at the end.
            PromptTooLong: the last message and the system prompt alone are more than `room` ids.
        """
        given = normalise(messages)
        systems = [well_formed(system), *(turn.content for turn in given if turn.role == "system")]
        system = "\n\n".join(text for text in systems if not is_blank(text))
        spoken = normalise(turn for turn in given if turn.role != "system")
        spoken = [replace(turn, ids=self._own_ids(turn)) for turn in spoken]
        if not spoken or spoken[-1].role != "user":
            raise NothingToAnswer("There is no message to answer. Type one first.")
        starts = [i for i, turn in enumerate(spoken) if turn.role == "user" or i == 0]
        tries: dict[int, _Draft] = {}

        def fits(dropped: int) -> bool:
            tries[dropped] = self._draft(spoken[starts[dropped] :], system)
            return len(tries[dropped].ids) <= room

        dropped = 0
        if not fits(0):
            sizes = self._sizes(spoken, starts, system)
            least = max(1, first_kept(sizes, room) if sizes else 0)
            dropped = least + bisect_left(range(least, len(starts)), True, key=fits)
        if dropped == len(starts):
            raise PromptTooLong(_too_long(len(tries[dropped - 1].ids), room))
        draft = tries[dropped]
        notes = (*draft.notes, left_out(dropped)) if dropped else draft.notes
        return Prompt(draft.ids, dropped, notes, draft.stop_strings)

    def _draft(self, spoken: list[Message], system: str) -> _Draft:
        """Render, repeat the replies that can be by their ids, encode."""
        seal = self._codec.seal()
        turns, rendered = self._settle(spoken, system, seal)
        ids = self._ids(rendered.text, turns, seal)
        if self._default_bos is not None and self._default_bos not in ids:
            ids.insert(0, self._default_bos)
        return _Draft(tuple(ids), tuple(map(seal.reveal, rendered.notes)), rendered.stop_strings)

    def _sizes(self, spoken: list[Message], starts: list[int], system: str) -> Sizes | None:
        """What each turn adds to the prompt, nearly: its part of the rendered text, encoded by itself.

        None when the template does not write the turns one after the other.
        """
        seal = self._codec.seal()
        turns, rendered = self._settle(spoken, system, seal, frozenset(starts))
        head, text = "", rendered.text
        asked: list[int] = []
        answered: list[int] = []
        for start, end in pairwise([*starts, len(turns)]):
            before, opened, rest = text.partition(seal.mark(f"b{start}"))
            message, closed, rest = rest.partition(seal.mark(f"e{start}"))
            after = rest.partition(seal.mark(f"b{end}"))[0]
            if not opened or not closed:
                return None
            head = head if asked else before
            asked.append(len(self._ids(message, (), seal, first=False)))
            answered.append(len(self._ids(after, turns[start + 1 : end], seal, first=False)))
            text = rest
        return Sizes(len(self._ids(head, (), seal)) + 1, asked, answered)  # 1: a beginning token

    def _settle(
        self, spoken: list[Message], system: str, seal: Seal, fenced: Collection[int] = ()
    ) -> tuple[list[_Turn], _Rendered]:
        """The rendered text, and its turns with those `ids` only that can stand for a part of it.

        fenced: places of turns to be given as text between marks, whether they have ids or not.
        """
        turns = [_sealed(turn, index, seal, index in fenced) for index, turn in enumerate(spoken)]
        hidden_system = seal.hide(system)
        rendered = self._render(turns, hidden_system, seal)
        while len(kept := _in_order(turns, rendered.text)) < len(turns):
            turns = [
                turn if turn in kept else _Turn(turn.role, seal.hide(message.content))
                for turn, message in zip(turns, spoken, strict=True)
            ]
            rendered = self._render(turns, hidden_system, seal)
        return turns, rendered

    def _ids(self, text: str, turns: Iterable[_Turn], seal: Seal, first: bool = True) -> list[int]:
        """The ids of a rendered text that has these turns in it; `first` as in `ControlCodec.encode`."""
        ids: list[int] = []
        for turn in turns:
            if turn.ids is not None:
                before, _, text = text.partition(turn.text)
                before = before.removesuffix(self._gap)
                ids += [*self._codec.encode(before, seal, first=first and not ids), *turn.ids]
        return ids + self._codec.encode(text, seal, first=first and not ids)

    def _own_ids(self, turn: Message) -> tuple[int, ...] | None:
        """Ids to repeat a reply with, end tokens off; None when they do not say exactly its text."""
        ids = list(turn.ids or ())
        while ids and ids[-1] in self._codec.controls:
            ids.pop()
        if not ids or turn.role != "assistant" or not self._codec.controls.keys().isdisjoint(ids):
            return None
        return tuple(ids) if text_of(self._tokenizer, ids) == turn.content else None

    def _render(self, turns: list[_Turn], system: str, seal: Seal) -> _Rendered:
        """By the template, else by it with the system text folded in, else plain."""
        if not self._has_template:
            return _Rendered(_plain(turns, system), (NO_TEMPLATE,), FALLBACK_STOPS)
        first = [_Turn("system", system)] if system else []
        text, complaint = self._apply([*first, *turns])
        if text is not None and (not system or self._writes_system(turns, system, seal)):
            return _Rendered(text)
        if system:
            text, folded_complaint = self._apply(_folded(turns, system))
            if text is not None:
                return _Rendered(text, (FOLDED,))
            complaint = folded_complaint or complaint
        return _Rendered(_plain(turns, system), (REFUSED.format(complaint),), FALLBACK_STOPS)

    def _writes_system(self, turns: list[_Turn], system: str, seal: Seal) -> bool:
        """Whether the template writes the system text or leaves it out without a word.

        Rendered once more for it, with marks: the text itself may well be found anywhere ("user" is).
        """
        marks = seal.mark("s0"), seal.mark("s1")
        text, _ = self._apply([_Turn("system", system.join(marks)), *turns])
        return text is not None and all(mark in text for mark in marks)

    def _space_before_reply(self) -> str:
        """White space that the template puts before a reply in the history, but not before one to be written.

        Llama 2's puts a blank there. A reply repeated by its ids has what the model itself wrote instead.
        """
        mark = self._codec.seal().mark("r")
        question, answer = _Turn("user", "x"), _Turn("assistant", mark)
        asked, _ = self._apply([question])
        answered, _ = self._apply([question, answer])
        if asked is None or answered is None:
            return ""
        before = answered.partition(mark)[0]
        gap = before.removeprefix(asked)
        return gap if before.startswith(asked) and gap.isspace() else ""

    def _apply(self, turns: list[_Turn]) -> tuple[str | None, str]:
        conversation = [{"role": turn.role, "content": turn.text} for turn in turns]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is foreign code: it may raise anything
            return None, " ".join(str(error).split())[:200] or type(error).__name__
        return (text, "") if isinstance(text, str) else (None, "it did not give a text")


def _sealed(turn: Message, index: int, seal: Seal, fenced: bool) -> _Turn:
    text = seal.hide(turn.content)
    if turn.ids is None and not fenced:
        return _Turn(turn.role, text)
    text = seal.mark(f"b{index}") + text + seal.mark(f"e{index}")
    return _Turn(turn.role, text, None if fenced else turn.ids)


def _in_order(turns: list[_Turn], text: str) -> list[_Turn]:
    """The turns, less those whose marked text the template changed, left out, repeated or moved."""
    kept, place = [], 0
    for turn in turns:
        if turn.ids is not None:
            found = text.find(turn.text, place)
            if found < 0 or text.count(turn.text) != 1:
                continue
            place = found + len(turn.text)
        kept.append(turn)
    return kept


def _folded(turns: list[_Turn], system: str) -> list[_Turn]:
    """The turns with the system text before the first user turn's."""
    first = next(i for i, turn in enumerate(turns) if turn.role == "user")
    return [*turns[:first], _Turn("user", f"{system}\n\n{turns[first].text}"), *turns[first + 1 :]]


def _plain(turns: list[_Turn], system: str) -> str:
    """The format for models without a chat template: a blank line between turns, the reply's place open."""
    names = {"user": "User:", "assistant": "Assistant:"}
    parts = [system] if system else []
    for turn in turns:
        space = "" if turn.ids is not None or turn.text[:1].isspace() else " "
        parts.append(names[turn.role] + space + turn.text)
    return "\n\n".join([*parts, "Assistant:"])


def _too_long(size: int, room: int) -> str:
    return (
        f"Your message makes a prompt of {size} tokens with the system prompt, and {room} fit. "
        "Shorten the message or the system prompt, or lower Max tokens, or choose a model with a longer context."
    )
