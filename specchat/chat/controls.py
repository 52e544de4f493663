"""Text with control tokens → ids, where only those control tokens count that the template itself wrote.

Typed text that spells a control token must reach the model as ordinary characters. Escaping can be got round,
and encoding the parts one by one changes the tokens at every seam. So the whole text is encoded in one go, by
a private copy of the tokenizer in which the control strings mean nothing and each control token answers to
another name, drawn at random: the template's own control tokens are renamed, typed ones are not. White-space
flags, normaliser and pre-tokenizer work as in the original, so a text without typed control strings gets
exactly the original's ids.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class UnsupportedTokenizer(TypeError):
    """A tokenizer without the `tokenizers` back-end (no tokenizer.json can be made of it)."""


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The `tokenizers.Tokenizer` inside; raises UnsupportedTokenizer where there is none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UnsupportedTokenizer(
            f"The tokenizer {type(tokenizer).__name__} has no tokenizer.json form, and without one, typed "
            "control tokens cannot be told from real ones. Choose a model that ships a tokenizer.json."
        )
    return backend


def control_tokens(tokenizer: PreTrainedTokenizerBase, extra: Iterable[int] = ()) -> dict[int, AddedToken]:
    """Id → token of every control token: added tokens marked special, and those of `extra` (end ids).

    Added tokens that are not special (a <think> tag, for one) are text the model reads and writes: not
    control.
    """
    wanted = {*tokenizer.all_special_ids, *extra}
    added = backend_of(tokenizer).get_added_tokens_decoder()
    return {id: token for id, token in added.items() if token.content and (token.special or id in wanted)}


class Spelling:
    """How the control tokens are spelt: finds them, and their beginnings and ends, in a text."""

    def __init__(self, strings: Iterable[str]) -> None:
        longest_first = sorted(strings, key=lambda text: (-len(text), text))
        self.whole = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._heads = {text[:n] for text in longest_first for n in range(1, len(text))}
        self._tails = {text[-n:] for text in longest_first for n in range(1, len(text))}
        self._longest = max(map(len, longest_first), default=0)

    def edges(self, text: str) -> tuple[int, int]:
        """How many first characters end a control string, and how many last ones begin one."""
        sizes = range(1, min(self._longest, len(text) + 1))
        head = max((n for n in sizes if text[:n] in self._tails), default=0)
        tail = max((n for n in sizes if text[-n:] in self._heads), default=0)
        return head, tail


class Seal:
    """Hides the control strings of typed texts while a template handles them, and brings them back after.

    Full control strings are hidden, and so are beginnings and ends of one at a text's edges, which could
    become one together with what the template puts beside them.
    """

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._salt = secrets.token_hex(8)
        self._marks = re.compile(f"<{self._salt}m([0-9]+)>")
        self._hidden: list[str] = []

    def mark(self, name: str) -> str:
        """A string nobody can have typed, the same for the same name (a letter and a number, but not m)."""
        return f"<{self._salt}{name}>"

    def hide(self, text: str) -> str:
        """The text with its control strings replaced by marks; white space around it stays outside."""
        text = self._spelling.whole.sub(lambda found: self._keep(found.group()), text)
        core = text.strip()
        if not core:
            return text
        before, _, after = text.partition(core)
        head, tail = self._spelling.edges(core)
        if head + tail > len(core):
            return before + self._keep(core) + after
        end = len(core) - tail
        return before + self._keep(core[:head]) + core[head:end] + self._keep(core[end:]) + after

    def reveal(self, text: str) -> str:
        """The text with every mark of `hide` replaced by what it stands for."""
        while self._marks.search(text):
            text = self._marks.sub(lambda found: self._hidden[int(found.group(1))], text)
        return text

    def _keep(self, text: str) -> str:
        if not text:
            return ""
        self._hidden.append(text)
        return self.mark(f"m{len(self._hidden) - 1}")


class ControlCodec:
    """Encodes text whose own control tokens are known from where they stand, not from how they are spelt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, extra: Collection[int] = ()) -> None:
        backend = backend_of(tokenizer)
        self.controls = control_tokens(tokenizer, extra)
        limits = {tokenizer.bos_token_id, tokenizer.eos_token_id, *extra}
        self._unknown = None if tokenizer.unk_token_id in limits else tokenizer.unk_token_id
        self._copy = Tokenizer.from_str(backend.to_str())
        self._copy.no_truncation()
        self._copy.no_padding()
        self._copy.encode_special_tokens = True
        salt = secrets.token_hex(8)
        self._names = {token.content: f"<{salt}c{id}>" for id, token in self.controls.items()}
        self._anchor = f"<{salt}a>"
        self._copy.add_tokens([AddedToken(self._anchor, normalized=False)])
        self._copy.add_tokens(
            [_renamed(token, self._names[token.content]) for token in self.controls.values()]
        )
        self._real = {
            self._copy.token_to_id(self._names[token.content]): id for id, token in self.controls.items()
        }
        self._anchor_id = self._copy.token_to_id(self._anchor)
        self._spelling = Spelling(self._names)

    def seal(self) -> Seal:
        """A fresh seal over this tokenizer's control strings."""
        return Seal(self._spelling)

    def encode(self, sealed: str, seal: Seal, first: bool = True) -> list[int]:
        """Ids of a template's output in which the typed texts are sealed.

        The unknown token stands for any character the vocabulary lacks, so it is no sign of a control string.
        `first=False` means that ids stand before this text, so that nothing is put in front of it (tokenizers
        of the SentencePiece kind put a space before the first word of a text).
        """
        text = seal.reveal(self._spelling.whole.sub(lambda found: self._names[found.group()], sealed))
        ids: list[int] = []
        for id in self._raw(text if first else self._anchor + text):
            if id in self._real:
                ids.append(self._real[id])
            elif id in self.controls and id != self._unknown:
                ids.extend(self._spelled_out(self.controls[id].content))
            elif id != self._anchor_id:
                ids.append(id)
        return ids

    def _spelled_out(self, text: str) -> Sequence[int]:
        """A control string character by character, where the vocabulary has it as an ordinary piece too."""
        ids = self._raw(self._anchor + self._anchor.join(text))
        return [id for id in ids if id != self._anchor_id and id not in self.controls]

    def _raw(self, text: str) -> list[int]:
        ids: list[int] = self._copy.encode(text, add_special_tokens=False).ids
        return ids


def _renamed(token: AddedToken, name: str) -> AddedToken:
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
