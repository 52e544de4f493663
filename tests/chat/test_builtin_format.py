"""The same promises, for the tokenizer and chat template that come with the app."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specchat.chat.conversation import Message
from specchat.chat.stream import text_of
from specchat.chat.template import ChatTemplate
from tests.chat.prompts import (
    ROOM,
    A,
    U,
    controls,
    plain_text,
    spiteful,
    talks,
    visible,
    whole,
)


@pytest.fixture(scope="module")
def smollm2(builtin_folder: Path) -> tuple[PreTrainedTokenizerFast, ChatTemplate]:
    tokenizer = AutoTokenizer.from_pretrained(builtin_folder)
    return tokenizer, ChatTemplate(tokenizer)


@pytest.mark.builtin
@given(talks, st.just("") | plain_text, spiteful)
@settings(max_examples=60)
def test_all_of_this_holds_for_the_built_in_target(
    smollm2: tuple[PreTrainedTokenizerFast, ChatTemplate], messages: list[Message], system: str, typed: str
) -> None:
    tokenizer, template = smollm2
    system = system if visible(system) else ""
    ids = template.encode(messages, system, ROOM).ids
    assert ids == whole(tokenizer, messages, system)
    assert text_of(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=True)
    attack = [*messages[:-1], Message(U, messages[-1].content + typed)]
    assert controls(tokenizer, template.encode(attack, system, ROOM).ids) == controls(tokenizer, ids)
    first = template.encode(messages, system, ROOM).ids
    reply = tuple(
        tokenizer(f"Well. {typed}", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    )
    history = [*messages, Message(A, text_of(tokenizer, reply), reply), Message(U, "go on")]
    assert all(left.role != right.role for left, right in pairwise(history))
    assert template.encode(history, system, ROOM).ids[: len(first) + len(reply)] == (*first, *reply)
