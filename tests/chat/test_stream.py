"""Ids → text: nothing half shown, nothing lost, nothing rewritten; stop strings however the text is cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from specchat.chat.conversation import Message
from specchat.chat.stream import Detokeniser, OutOfStep, ReplyStream, StopStrings, text_of
from specchat.decode.events import Round, Token
from tests.chat import tok

BYTES = tok.byte_level(extra=("<think>",))  # ids 0-255 are the bytes
PIECES = tok.sentence_piece()
OLD_PIECES = tok.sentence_piece(metaspace=False)
WORDS = tok.word_piece()
END = BYTES.convert_tokens_to_ids(tok.IM_END)
START = BYTES.convert_tokens_to_ids(tok.IM_START)


def decode(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def a_round(ids: list[int], index: int = 0) -> Round:
    tokens = tuple(Token(id, "accepted", 1.0, 1.0, place) for place, id in enumerate(ids))
    return Round(index, tokens, None, 8, len(ids), len(ids), "model", 1, 8, 0, 0, 0, 0, 0.0)


@given(st.lists(st.integers(0, len(BYTES) + 2), max_size=40))
def test_the_sum_of_the_pieces_is_the_decode_of_all_ids_for_any_bytes_at_all(ids: list[int]) -> None:
    assert text_of(BYTES, ids) == decode(BYTES, [id for id in ids if id < len(BYTES)])


@given(st.lists(st.integers(0, len(WORDS) - 1), max_size=12))
def test_the_sum_of_the_pieces_is_the_decode_of_all_ids_for_word_pieces(ids: list[int]) -> None:
    assert text_of(WORDS, ids) == decode(WORDS, ids)


@given(st.text(alphabet="Helo wrdthcatsé日😀\n", max_size=30))
@pytest.mark.parametrize("metaspace", [True, False])
def test_no_space_and_no_last_word_is_lost_by_a_sentencepiece_tokenizer(metaspace: bool, text: str) -> None:
    tokenizer = PIECES if metaspace else OLD_PIECES
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert text_of(tokenizer, ids) == decode(tokenizer, ids)
    behind_another_word = [PIECES.convert_tokens_to_ids("▁cat"), *ids]
    assert text_of(tokenizer, behind_another_word) == decode(tokenizer, behind_another_word)


@given(st.text(max_size=20))
@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦", "日本語", "ภาษาไทย", "🎉", "é"])
def test_a_character_is_shown_whole_at_its_last_byte_and_never_before(text: str, more: str) -> None:
    detokeniser, shown, sent = Detokeniser(BYTES), "", b""
    for byte in (text + more).encode():
        shown += detokeniser.push(byte)
        sent += bytes([byte])
        assert shown == sent.decode(errors="ignore"), "text must appear as soon as its last byte is there"
    assert detokeniser.flush() == ""


def test_a_lone_invalid_byte_is_one_replacement_mark_at_once() -> None:
    detokeniser = Detokeniser(BYTES)
    assert [detokeniser.push(id) for id in (0xFF, ord("a"), 0x80, ord("b"))] == ["\ufffd", "a", "\ufffd", "b"]


def test_an_unfinished_character_followed_by_ascii_is_released_with_it() -> None:
    detokeniser = Detokeniser(BYTES)
    assert [detokeniser.push(id) for id in (0xE2, 0x82, ord("a"))] == ["", "", "\ufffda"]


def test_a_budget_that_ends_inside_a_character_flushes_one_replacement_mark() -> None:
    detokeniser = Detokeniser(BYTES)
    assert "".join(detokeniser.push(id) for id in "a🎉".encode()[:-1]) == "a"
    assert detokeniser.flush() == "\ufffd"
    assert detokeniser.flush() == ""


def test_byte_fallback_keeps_the_valid_characters_beside_an_invalid_byte() -> None:
    ids = [PIECES.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in [*"é".encode(), 0xFF]]
    word = PIECES.convert_tokens_to_ids("▁cat")
    detokeniser = Detokeniser(PIECES)
    assert [detokeniser.push(id) for id in [*ids, word]] == ["", "é", "\ufffd", " cat"]


def test_control_tokens_and_unknown_ids_show_nothing_and_other_added_tokens_show_themselves() -> None:
    think = BYTES.convert_tokens_to_ids("<think>")
    assert text_of(BYTES, [START, ord("a"), END, 10**6, think]) == "a<think>"


def test_the_cost_of_a_token_does_not_grow_with_the_reply() -> None:
    def seconds(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> float:
        best = 9.0
        for _ in range(5):
            start = time.thread_time()
            text_of(tokenizer, ids)
            best = min(best, time.thread_time() - start)
        return best

    word = PIECES.convert_tokens_to_ids("▁cat")
    for tokenizer, ids in ((BYTES, [0xF0, 0x9F, 0x8E, 0x89]), (PIECES, [word] * 4), (BYTES, [0xFF] * 4)):
        ratio = seconds(tokenizer, ids * 2000) / seconds(tokenizer, ids * 500)
        assert ratio < 10, f"four times the tokens took {ratio:.1f} times as long (4 is linear, 16 quadratic)"


stops = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


@given(st.text(alphabet="ab\n", max_size=24), stops, st.lists(st.integers(0, 30), max_size=8))
@settings(max_examples=300)
def test_stop_strings_cut_at_the_same_place_however_the_text_is_split(
    text: str, strings: list[str], places: list[int]
) -> None:
    whole, shown = StopStrings(strings), ""
    ends = [(text.find(s) + len(s), text.find(s)) for s in strings if s in text]
    for part in tok.cut_into(text, places):
        emit, stopped = whole.push(part)
        shown += emit
        assert stopped == whole.stopped
    if ends:
        assert shown == text[: min(ends)[1]] and whole.stopped
        assert whole.push("more") == ("", True) and whole.flush() == ""
    else:
        held = whole.flush()
        assert shown + held == text and not whole.stopped
        assert len(held) < max(map(len, strings), default=1)


def test_text_is_held_only_while_it_may_become_a_stop_string() -> None:
    stop = StopStrings(["aab"])
    assert [stop.push(char) for char in "aaax"] == [("", False), ("", False), ("a", False), ("aax", False)]
    assert [stop.push(char) for char in "aaab"][-1] == ("", True)


def test_of_two_stop_strings_completed_by_one_character_the_longer_is_hidden() -> None:
    assert StopStrings(["\nUser:", "\n\nUser:"]).push("ok\n\nUser:") == ("ok", True)


def test_empty_stop_strings_are_none() -> None:
    assert StopStrings(["", ""]).push("text") == ("text", False)


def stream(ids: list[int], strings: tuple[str, ...] = ()) -> tuple[ReplyStream, list[int], list[str]]:
    """What the engine would emit of this block, asking after each id, and the pieces' texts."""
    reply, emitted = ReplyStream(BYTES, {END}, strings), []
    for id in ids:
        emitted.append(id)
        if reply.stop(id) or id == END:
            break
    return reply, emitted, [piece.text for piece in reply.pieces(a_round(emitted))]


def test_a_two_character_stop_string_completed_early_in_a_block_is_seen() -> None:
    reply, emitted, texts = stream([*b"x##abcdef"], ("##",))
    assert emitted == [*b"x##"] and texts == ["x", "", ""]
    assert reply.text == "x" and reply.finish() == ""


def test_text_before_a_stop_string_inside_the_same_token_is_shown() -> None:
    the = BYTES.convert_tokens_to_ids("Ġthe")
    reply, emitted, texts = stream([ord("a"), the, ord("b")], ("he",))
    assert emitted == [ord("a"), the] and texts == ["a", " t"]
    assert reply.message() == Message("assistant", "a t"), "ids that hold a stop string are not the reply's"


def test_held_text_that_is_no_stop_string_comes_out_in_order() -> None:
    reply, emitted, texts = stream([*b"a#b##?c"], ("##!",))
    assert emitted == [*b"a#b##?c"] and "".join(texts) == reply.text == "a#b##?c"
    assert texts == ["a", "", "#b", "", "", "##?", "c"]


def test_the_end_token_is_hidden_and_what_was_held_is_shown_at_the_end() -> None:
    reply, emitted, texts = stream([*b"hi#", 0xE2, END, *b"more"], ("##",))
    assert emitted == [*b"hi#", 0xE2, END] and texts == ["h", "i", "", "", ""]
    assert reply.finish() == "#\ufffd"
    assert reply.text == "hi#\ufffd"
    assert reply.message() == Message("assistant", "hi#\ufffd", (*b"hi#", 0xE2))


def test_every_one_of_several_end_tokens_is_hidden_even_one_that_is_ordinary_text() -> None:
    reply = ReplyStream(BYTES, {END, ord("!")})
    texts = [piece.text for piece in reply.pieces(a_round([*b"ok!"]))]
    assert texts == ["o", "k", ""] and reply.message().ids == (*b"ok",)


@given(
    st.lists(st.integers(0, len(BYTES) - 1), max_size=40),
    stops,
    st.lists(st.integers(1, 8), min_size=1, max_size=40),
)
def test_over_rounds_of_any_size_the_pieces_and_the_tail_are_the_text_up_to_the_stop(
    ids: list[int], strings: list[str], sizes: list[int]
) -> None:
    reply, pieces, place, done = ReplyStream(BYTES, {END}, strings), [], 0, False
    for index, size in enumerate(sizes * 40):
        block = []
        for id in ids[place : place + size]:
            block.append(id)
            if reply.stop(id) or id == END:
                done = True
                break
        place += size
        made = reply.pieces(a_round(block, index))
        assert [piece.token.id for piece in made] == block
        assert all(piece.round_index == index for piece in made)
        pieces += made
        if done or place >= len(ids):
            break
    shown = "".join(piece.text for piece in pieces) + reply.finish()
    written = decode(BYTES, ids[: ids.index(END)] if END in ids else ids)
    cut = min(((written.find(s) + len(s), written.find(s)) for s in strings if s in written), default=None)
    assert shown == reply.text == (written if cut is None else written[: cut[1]])


def test_a_round_that_is_not_what_the_engine_asked_about_is_refused() -> None:
    reply = ReplyStream(BYTES, {END})
    reply.stop(65)
    with pytest.raises(OutOfStep, match="66"):
        reply.pieces(a_round([66]))
