"""Conversation → ids: the template's own, typed control strings as text, whatever the template refuses."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specchat.chat.controls import UnsupportedTokenizer
from specchat.chat.conversation import Message
from specchat.chat.stream import text_of
from specchat.chat.template import (
    FALLBACK_STOPS,
    FOLDED,
    NO_TEMPLATE,
    ChatTemplate,
    NothingToAnswer,
    PromptTooLong,
)
from tests.chat import tok
from tests.chat.prompts import (
    ATTACK,
    BYTES,
    CHATML,
    FORMATS,
    KINDS,
    ROOM,
    A,
    U,
    controls,
    plain_text,
    rendered,
    spiteful,
    talk,
    talks,
    visible,
    whole,
)


@pytest.mark.parametrize("kind", KINDS)
@given(messages=talks, system=st.just("") | plain_text)
@example(messages=talk(["\n\nx", "\n\ny", "z\n\n"]), system="\n")
@example(messages=talk(["x <think>", "a<think>b</think>\n\nc", " the"]), system="")
@settings(max_examples=60)
def test_without_typed_control_strings_the_ids_are_those_of_the_whole_rendered_text(
    kind: str, messages: list[Message], system: str
) -> None:
    system = system if visible(system) else ""
    assert FORMATS[kind].encode(messages, system, ROOM).ids == whole(KINDS[kind], messages, system)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(spiteful, min_size=4, max_size=4))
@settings(max_examples=60)
def test_typed_control_strings_add_no_control_id_wherever_they_are_typed(kind: str, texts: list[str]) -> None:
    system, *said = [f"y{text}" for text in texts]
    harmless = talk(["a", "b", "c"])
    expected = controls(KINDS[kind], whole(KINDS[kind], harmless, "d"))
    got = FORMATS[kind].encode(talk(said), system, ROOM).ids
    assert controls(KINDS[kind], got) == expected


@pytest.mark.parametrize("place", ["user", "system", "edited reply"])
def test_the_literal_characters_of_typed_control_tokens_survive(place: str) -> None:
    history, system = talk(["one", "two", "three"]), ""
    if place == "user":
        history[2] = Message(U, ATTACK)
    elif place == "system":
        system = ATTACK
    else:
        history[1] = Message(A, ATTACK)
    ids = CHATML.encode(history, system, ROOM).ids
    assert ATTACK in text_of(BYTES, ids)
    assert len(controls(BYTES, ids)) == rendered(BYTES, talk(["a", "b", "c"]), system and "d").count("<|im_")


def test_a_typed_control_token_is_encoded_like_any_other_word_not_letter_by_letter() -> None:
    tokenizer = tok.byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<other>"]})
    letters = ChatTemplate(tokenizer).encode([Message(U, "the <other> way")], "", ROOM).ids
    plain = tok.byte_level()
    assert letters == whole(plain, [Message(U, "the <other> way")])
    assert plain.convert_tokens_to_ids("he") in plain("<other>")["input_ids"]


@given(st.lists(spiteful, min_size=3, max_size=3))
def test_the_text_of_the_prompt_is_the_rendered_text_whatever_was_typed(texts: list[str]) -> None:
    messages = talk([f"y{text}" for text in texts])
    ids = CHATML.encode(messages, "", ROOM).ids
    assert BYTES.decode(ids, clean_up_tokenization_spaces=False) == rendered(BYTES, messages)


def test_halves_of_a_control_token_typed_in_two_boxes_do_not_become_one() -> None:
    tokenizer = tok.byte_level(tok.GLUED)
    ids = ChatTemplate(tokenizer).encode([Message(U, "_end|> hello")], "be <|im", ROOM).ids
    glued = tok.byte_level(tok.GLUED.replace("'<|im_start|>'", "''"))
    assert len(controls(tokenizer, ids)) == 2
    assert (
        len(controls(glued, ChatTemplate(glued).encode([Message(U, "_end|> hi")], "be <|im", ROOM).ids)) == 1
    )


def test_an_end_token_that_the_tokenizer_calls_ordinary_is_guarded_too() -> None:
    tokenizer = tok.byte_level(extra=("<turn>",))
    end = tokenizer.convert_tokens_to_ids("<turn>")
    message = [Message(U, "a<turn>b")]
    assert end in ChatTemplate(tokenizer).encode(message, "", ROOM).ids
    ids = ChatTemplate(tokenizer, {end}).encode(message, "", ROOM).ids
    assert end not in ids and "a<turn>b" in text_of(tokenizer, ids)


def test_a_blank_system_prompt_leaves_the_template_its_own_default() -> None:
    template, tokenizer = FORMATS["default system"], KINDS["default system"]
    assert "You are tiny" in text_of(tokenizer, template.encode(talk(["hi"]), "  ", ROOM).ids)
    assert "You are tiny" not in text_of(tokenizer, template.encode(talk(["hi"]), "Be brief", ROOM).ids)


def test_system_turns_among_the_messages_join_the_system_prompt() -> None:
    history = [Message("system", "b"), *talk(["hi"])]
    assert CHATML.encode(history, "a", ROOM).ids == whole(BYTES, talk(["hi"]), "a\n\nb")


@pytest.mark.parametrize("writes_bos", [True, False])
@pytest.mark.parametrize("add_bos", [True, False])
def test_there_is_exactly_one_beginning_token(writes_bos: bool, add_bos: bool) -> None:
    template = ("{{ bos_token }}" if writes_bos else "") + tok.SPOKEN
    tokenizer = tok.sentence_piece(template, add_bos=add_bos)
    ids = ChatTemplate(tokenizer).encode(talk(["Hello", "a", "the cat"]), "", ROOM).ids
    assert ids.count(tokenizer.bos_token_id) == (writes_bos or add_bos)
    assert (ids[0] == tokenizer.bos_token_id) == (writes_bos or add_bos)


def test_a_base_tokenizer_gets_the_plain_format_with_a_note_and_a_stop_string() -> None:
    tokenizer = tok.byte_level(None)
    prompt = ChatTemplate(tokenizer).encode(talk(["one", " two", "three"]), "Be brief.", ROOM)
    expected = "Be brief.\n\nUser: one\n\nAssistant: two\n\nUser: three\n\nAssistant:"
    assert text_of(tokenizer, prompt.ids) == expected
    assert prompt.ids == tuple(tokenizer(expected)["input_ids"])
    assert prompt.notes == (NO_TEMPLATE,)
    assert prompt.stop_strings == FALLBACK_STOPS
    assert CHATML.encode(talk(["x"]), "", ROOM).stop_strings == ()


@pytest.mark.parametrize("system", ["Be brief.", "user", "one", "<|im_end|>", "\n"])
@pytest.mark.parametrize("source", [tok.RAISES_ON_SYSTEM, tok.IGNORES_SYSTEM])
def test_a_template_that_takes_no_system_prompt_gets_it_in_the_first_user_turn(
    source: str, system: str
) -> None:
    tokenizer = tok.byte_level(source)
    prompt = ChatTemplate(tokenizer).encode(talk(["one", "two", "three"]), system, ROOM)
    first = f"{system}\n\none" if visible(system) else "one"
    text = tokenizer.decode(prompt.ids, clean_up_tokenization_spaces=False)
    assert text == rendered(tokenizer, talk([first, "two", "three"]))
    assert prompt.notes == ((FOLDED,) if visible(system) else ())


@pytest.mark.parametrize("kind", ["chatml", "default system", "trimming"])
@pytest.mark.parametrize("system", ["user", "one", "  Be brief.\n", "<|im_end|>"])
def test_a_system_prompt_that_the_template_writes_is_not_put_anywhere_else(kind: str, system: str) -> None:
    prompt = FORMATS[kind].encode(talk(["one"]), system, ROOM)
    text = KINDS[kind].decode(prompt.ids, clean_up_tokenization_spaces=False)
    assert text == rendered(KINDS[kind], talk(["one"]), system)
    assert prompt.notes == ()


@pytest.mark.parametrize("source", [tok.RAISES_ALWAYS, "{{ messages[7]['content'].no.such }}", "{% if %}"])
def test_a_template_that_raises_is_worked_round_with_a_note_and_never_a_traceback(source: str) -> None:
    tokenizer = tok.byte_level(source)
    prompt = ChatTemplate(tokenizer).encode(talk(["hi"]), "s", ROOM)
    assert text_of(tokenizer, prompt.ids) == "s\n\nUser: hi\n\nAssistant:"
    assert len(prompt.notes) == 1 and "refused" in prompt.notes[0]
    assert prompt.stop_strings == FALLBACK_STOPS


def test_page_shaped_history_with_a_stopped_turn_is_accepted_by_a_strict_template() -> None:
    tokenizer = tok.byte_level(tok.RAISES_ON_SYSTEM)
    history = [
        {
            "role": U,
            "content": [{"type": "text", "text": "one"}],
            "metadata": {"title": None},
            "options": None,
        },
        {"role": A, "content": ""},
        {"role": U, "content": "two"},
    ]
    prompt = ChatTemplate(tokenizer).encode(history, "", ROOM)
    assert prompt.ids == whole(tokenizer, talk(["one\n\ntwo"])) and prompt.notes == ()


@pytest.mark.parametrize("history", [[], [Message(U, "  ")], talk(["a", "b"]), [Message("system", "x")]])
def test_nothing_to_answer_is_said_without_calling_the_model(history: list[Message]) -> None:
    with pytest.raises(NothingToAnswer, match="Type one"):
        CHATML.encode(history, "", ROOM)


@pytest.mark.parametrize("turns", [1, 3])
def test_a_message_that_cannot_fit_is_refused_with_both_numbers(turns: int) -> None:
    history = talk(["short"] * (turns - 1) + ["x" * 500])
    size = len(whole(BYTES, history[-1:], "system"))
    with pytest.raises(PromptTooLong, match=rf"{size} tokens.* 100 fit.*Shorten.*Max tokens"):
        CHATML.encode(history, "system", 100)
    assert len(CHATML.encode(history, "system", size).ids) == size


def test_a_tokenizer_without_a_fast_form_is_refused_with_a_sentence() -> None:
    class Slow:
        backend_tokenizer = None

    with pytest.raises(UnsupportedTokenizer, match="Choose a model"):
        ChatTemplate(Slow())  # type: ignore[arg-type]
