"""Ids → text, piece by piece, as a reply is written.

`Detokeniser` turns ids into text that only ever grows, `StopStrings` holds back what may become a stop
string, `ReplyStream` is both for one reply: the engine asks it after each id whether to stop, the page gets
one `Piece` per token. The cost per token does not depend on the length of the reply.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import decoders

from specchat.chat.controls import backend_of
from specchat.chat.conversation import Message
from specchat.decode.events import Round, Token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Piece:
    """What one emitted token shows. The text may be "": half a character, or held back for a stop string."""

    text: str
    token: Token
    round_index: int


class OutOfStep(RuntimeError):
    """The engine's round holds other tokens than those it asked about."""


def _byte_of_symbol() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character (GPT-2's table); this is the way back."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_SYMBOL = _byte_of_symbol()


class Detokeniser:
    """One reply's ids → text, without control tokens.

    The sum of the pieces is the tokenizer's decode of all ids (special tokens skipped, no clean-up of
    spaces). Bytes go through an incremental UTF-8 decoder, so at most the 3 bytes of an unfinished character
    wait, and an invalid byte is one U+FFFD at once. One difference, on purpose: tokenizers with byte fallback
    decode a run of byte tokens with one invalid byte in it as U+FFFD throughout, which would rewrite what has
    been shown; here its valid characters stay.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = backend_of(tokenizer)
        self._decoder = self._backend.decoder
        self._byte_level = isinstance(self._decoder, decoders.ByteLevel)
        added = self._backend.get_added_tokens_decoder()
        self._skipped = {id for id, token in added.items() if token.special}
        self._byte_fallback = self._decode("<0x41>") == "A"
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._before: list[str] = []

    def push(self, id: int) -> str:
        """The text that this id makes sure of; "" for control tokens and ids the tokenizer does not have."""
        token = self._backend.id_to_token(id)
        if token is None or id in self._skipped:
            return ""
        data = self._bytes(token)
        if data is not None:
            text = self._utf8.decode(data)
        else:
            text = self._utf8.decode(b"", final=True) + self._in_context(token)
        self._before = [token]
        return text

    def flush(self) -> str:
        """What is still waiting: U+FFFD for an unfinished character, else ""."""
        return self._utf8.decode(b"", final=True)

    def _bytes(self, token: str) -> bytes | None:
        """The token's bytes, where the tokenizer is one of bytes; None for a token that is text."""
        if self._byte_level:
            codes = [_BYTE_OF_SYMBOL.get(char) for char in token]
            return token.encode() if None in codes else bytes(code for code in codes if code is not None)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return None

    def _in_context(self, token: str) -> str:
        """The token's text behind the one before it: only the first word of a reply may lose its space."""
        shown, text = self._decode(*self._before), self._decode(*self._before, token)
        return text[len(shown) :] if text.startswith(shown) else text

    def _decode(self, *tokens: str) -> str:
        if not tokens:
            return ""
        return self._decoder.decode(list(tokens)) if self._decoder is not None else " ".join(tokens)


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """What `Detokeniser` shows of these ids, all at once."""
    detokeniser = Detokeniser(tokenizer)
    return "".join([*map(detokeniser.push, ids), detokeniser.flush()])


class StopStrings:
    """Cuts a stream of text before the first stop string, however the text is split into pieces.

    "First" is the one completed first; of several completed by the same character, the one that began first.
    Only text that may still become a stop string is held, so less than the longest one's length.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._strings = tuple(text for text in strings if text)
        self._longest = max(map(len, self._strings), default=0)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text to show now, and whether a stop string is complete; from then on nothing is shown."""
        if self.stopped:
            return "", True
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._strings if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]], True
        keep = self._suspicious(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The held text: the stream ended, so it is no stop string."""
        text, self._held = self._held, ""
        return text

    def _suspicious(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._strings):
                return size
        return 0


class ReplyStream:
    """The text of one reply, from the ids as the engine emits them."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], stop_strings: Sequence[str] = ()
    ) -> None:
        self._detokeniser = Detokeniser(tokenizer)
        self._eos_ids = frozenset(eos_ids)
        self._stops = StopStrings(stop_strings)
        self._waiting: deque[tuple[int, str]] = deque()
        self._ids: list[int] = []
        self._shown: list[str] = []

    def stop(self, id: int) -> bool:
        """For the engine, once per emitted id in order: does this id complete a stop string?"""
        text = "" if id in self._eos_ids else self._detokeniser.push(id)
        text, stopped = self._stops.push(text)
        self._waiting.append((id, text))
        return stopped

    def pieces(self, round: Round) -> tuple[Piece, ...]:
        """One piece per token of the round, in order. Tokens the engine did not ask about are read here.

        Raises OutOfStep when the engine asked about other ids than the round holds.
        """
        return tuple(Piece(self._take(token), token, round.index) for token in round.tokens)

    def finish(self) -> str:
        """The tail that no token showed: held-back text, U+FFFD for an unfinished character. Call it once."""
        if self._stops.stopped:
            return ""
        text, _ = self._stops.push(self._detokeniser.flush())
        tail = text + self._stops.flush()
        self._shown.append(tail)
        return tail

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._shown)

    def message(self) -> Message:
        """The reply as a turn. It keeps its ids, unless a stop string was cut off them."""
        ids = None if self._stops.stopped else tuple(id for id in self._ids if id not in self._eos_ids)
        return Message("assistant", self.text, ids)

    def _take(self, token: Token) -> str:
        if not self._waiting:
            self.stop(token.id)
        id, text = self._waiting.popleft()
        if id != token.id:
            raise OutOfStep(f"The round holds the id {token.id} where the engine had asked about {id}.")
        self._ids.append(id)
        self._shown.append(text)
        return text
