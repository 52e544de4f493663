"""A tiny target that writes conversations, and the parts that the tests of `distil` share."""

from __future__ import annotations

import functools
from pathlib import Path

from specchat.chat.controls import control_tokens
from specchat.chat.template import ChatTemplate
from specchat.lab.distil.generate import Author, Style, write
from specchat.lab.distil.shards import Shards
from specchat.lab.distil.turns import Turns, turns_of
from specchat.model.compact import CompactDecoder
from tests.tiny import TINY_VOCAB, Kind, tiny_model, tiny_tokenizer

SHORT = Style(longest_user=8, longest_reply=20, opened=0.7, second=0.4, varied=0.0)
GREEDY = Style((1.0, 1), (1.0, 1), 6, 10, 1.0, 0.5, 0.0)
OPENINGS = [[20 + 3 * i, 40 + i] for i in range(12)]


def target_of(kind: Kind = "llama", seed: int = 0) -> CompactDecoder:
    return CompactDecoder.from_module(tiny_model(kind, seed=seed), TINY_VOCAB, 256, "float32")


@functools.cache
def turns() -> Turns:
    tokenizer = tiny_tokenizer()
    eos = tokenizer.eos_token_id
    return turns_of(ChatTemplate(tokenizer, (eos,)), control_tokens(tokenizer, (eos,)))


def author_of(target: CompactDecoder, style: Style = SHORT, slots: int = 6, seed: str = "0") -> Author:
    return Author(target, turns(), OPENINGS, style, slots, seed, 256)


def written(folder: Path, tokens: int, target: CompactDecoder | None = None) -> Shards:
    """A folder of shards."""
    shards = Shards(folder, TINY_VOCAB)
    author = author_of(target or target_of(), seed=f"0:{shards.tokens}")
    write(author, shards, tokens, lambda: True, lambda _: None, shard_tokens=tokens // 2)
    return shards
