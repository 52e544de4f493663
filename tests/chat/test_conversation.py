"""Messages as the page gives them, and as a template takes them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.chat.conversation import (
    BadHistory,
    Message,
    from_page,
    is_blank,
    normalise,
    well_formed,
)

U, A = "user", "assistant"
CHAT = [Message(U, "one"), Message(A, "eins", (1, 2)), Message(U, "two"), Message(A, "zwei", (3,))]
messages = st.builds(Message, st.sampled_from(["system", U, A]), st.text(max_size=6))


def test_page_shaped_content_is_flattened_to_its_text_and_extra_keys_are_dropped() -> None:
    history = [
        {"role": U, "content": [{"type": "text", "text": "hi"}], "metadata": {"title": "x"}, "options": []},
        {"role": A, "content": "hello", "metadata": None},
        {
            "role": U,
            "content": [{"type": "file", "file": {"path": "p"}}, {"type": "text", "text": "see"}, "b"],
        },
        {"role": A, "content": None},
        {"role": A, "content": {"type": "component", "component": "plot"}},
    ]
    expected = [Message(U, "hi"), Message(A, "hello"), Message(U, "see\nb"), Message(A, ""), Message(A, "")]
    assert from_page(history) == expected


def test_from_page_keeps_one_message_per_entry_so_that_an_index_of_the_page_stays_valid() -> None:
    history = [{"role": U, "content": "  "}, {"role": U, "content": "a"}, {"role": U, "content": "b"}]
    assert len(from_page(history)) == 3


@pytest.mark.parametrize("entry", ["text", {"role": "tool", "content": "x"}, {"content": "x"}, 3])
def test_what_is_no_message_is_refused_with_a_sentence(entry: object) -> None:
    with pytest.raises(BadHistory, match="A message"):
        from_page([entry])


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", "\ufeff \x00"])
def test_text_in_which_nothing_can_be_seen_is_blank(text: str) -> None:
    assert is_blank(text)
    assert normalise([Message(U, "x"), Message(U, text)]) == [Message(U, "x")]


def test_two_user_turns_after_a_stop_without_text_become_one() -> None:
    stopped = [Message(U, "first"), Message(A, ""), Message(U, "second")]
    assert normalise(stopped) == [Message(U, "first\n\nsecond")]


def test_a_reply_keeps_its_ids_unless_it_is_merged() -> None:
    assert normalise(CHAT) == CHAT
    assert normalise([*CHAT, Message(A, "more", (4,))])[-1] == Message(A, "zwei\n\nmore")


@given(st.lists(messages, max_size=8))
def test_normalised_turns_alternate_hold_text_and_stay_as_they_are(history: list[Message]) -> None:
    turns = normalise(history)
    assert all(left.role != right.role for left, right in pairwise(turns))
    assert not any(is_blank(turn.content) for turn in turns)
    assert normalise(turns) == turns


def test_half_a_surrogate_pair_becomes_a_replacement_mark_and_a_whole_pair_its_character() -> None:
    assert well_formed("a\ud83d") == "a\ufffd"
    assert well_formed("\ud83d\ude00é") == "😀é"
