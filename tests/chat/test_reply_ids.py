"""Replies repeated by the ids the model wrote: the next prompt begins with all that the caches hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.chat.conversation import Message, is_blank
from specchat.chat.stream import text_of
from specchat.chat.template import ChatTemplate
from tests.chat import tok
from tests.chat.prompts import (
    BYTES,
    CHATML,
    FORMATS,
    KINDS,
    ROOM,
    A,
    U,
    plain_text,
    talk,
    whole,
)


@pytest.mark.parametrize("kind", ["chatml", "default system", "trimming", "sentencepiece", "plain"])
@given(st.lists(st.lists(st.integers(3, 250), min_size=1, max_size=8), min_size=1, max_size=3), st.data())
@settings(max_examples=40)
def test_each_prompt_begins_with_the_last_prompt_and_the_ids_the_model_wrote(
    kind: str, replies: list[list[int]], data: st.DataObject
) -> None:
    tokenizer = PLAIN if kind == "plain" else KINDS[kind]
    template = PLAIN_FORMAT if kind == "plain" else FORMATS[kind]
    history = [Message(U, "hello")]
    for ids in replies:
        before = template.encode(history, "", ROOM).ids
        reply = Message(A, text_of(tokenizer, ids), (*ids, *data.draw(st.sampled_from([(), END[kind]]))))
        if is_blank(reply.content):
            continue
        history += [reply, Message(U, data.draw(plain_text))]
        now = template.encode(history, "", ROOM).ids
        assert now[: len(before) + len(ids)] == (*before, *ids)


PLAIN = tok.byte_level(None)
PLAIN_FORMAT = ChatTemplate(PLAIN)
END = {"plain": (PLAIN.eos_token_id,)} | {
    name: (tokenizer.eos_token_id,) for name, tokenizer in KINDS.items()
}


def test_ids_that_do_not_say_the_text_are_not_used() -> None:
    for ids in ((1, 2, 3), (), (*b"yes", END["chatml"][0], *b"yes")):
        history = [Message(U, "a"), Message(A, "yes", ids), Message(U, "b")]
        assert CHATML.encode(history, "", ROOM).ids == whole(BYTES, history)


def test_control_ids_inside_a_reply_do_not_come_back_in_the_next_prompt() -> None:
    start = BYTES.convert_tokens_to_ids(tok.IM_START)
    history = [Message(U, "a"), Message(A, "yes", (*b"ye", start, *b"s")), Message(U, "b")]
    assert CHATML.encode(history, "", ROOM).ids == whole(BYTES, history)


def test_a_reply_that_the_template_rewrites_is_given_as_the_template_wants_it() -> None:
    tokenizer = KINDS["drops thought"]
    thought = "<think>hm</think>\nyes"
    ids = tuple(tokenizer(thought, add_special_tokens=False)["input_ids"])
    assert text_of(tokenizer, ids) == thought
    history = [*talk(["a", thought, "b", "no", "c"])]
    history[1], history[3] = Message(A, thought, ids), Message(A, "no", (*b"no",))
    assert FORMATS["drops thought"].encode(history, "", ROOM).ids == whole(tokenizer, history)


def test_a_reply_that_the_template_writes_twice_is_encoded_from_its_text() -> None:
    tokenizer = tok.byte_level(
        tok.CHATML.replace("message['content']", "message['content'] + message['content']")
    )
    history = [Message(U, "a"), Message(A, "yes", (*b"yes",)), Message(U, "b")]
    assert ChatTemplate(tokenizer).encode(history, "", ROOM).ids == whole(tokenizer, history)


def test_no_space_slips_in_behind_a_reply_that_is_repeated_by_its_ids() -> None:
    tokenizer = tok.sentence_piece(None, add_bos=False)
    ids = tuple(tokenizer.convert_tokens_to_ids(["▁the", "▁cat"]))
    history = [Message(U, "one"), Message(A, text_of(tokenizer, ids), ids), Message(U, "two")]
    prompt = ChatTemplate(tokenizer).encode(history, "", ROOM)
    assert text_of(tokenizer, prompt.ids) == "User: one\n\nAssistant: the cat\n\nUser: two\n\nAssistant:"
