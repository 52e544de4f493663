"""Conversations longer than the context: what is left out, and how seldom the prompt's beginning changes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.chat.conversation import Message
from specchat.chat.stream import text_of
from specchat.chat.template import ChatTemplate, Prompt, PromptTooLong
from specchat.chat.window import LOW_WATER, Sizes, first_kept
from tests.chat import tok
from tests.chat.prompts import BYTES, CHATML, FORMATS, KINDS, ROOM, A, U, talk, whole

SYSTEM = "keep me"
sizes_of_turns = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=40)


def numbered(turns: int, width: int = 30) -> list[Message]:
    return talk([f"{place}-" + "a" * width for place in range(2 * turns - 1)])


def prompts(template: ChatTemplate, history: list[Message], room: int, system: str = SYSTEM) -> list[Prompt]:
    """One prompt per user turn, each knowing only what was said up to it."""
    return [
        template.encode(history[: end + 1], system, room)
        for end, turn in enumerate(history)
        if turn.role == U
    ]


def test_whole_turns_go_the_system_prompt_stays_and_a_quarter_of_the_room_is_free_again() -> None:
    history, room, before = numbered(40), 800, 0
    for asked, prompt in enumerate(prompts(CHATML, history, room)):
        said = history[: 2 * asked + 1]
        assert prompt.ids == whole(BYTES, said[2 * prompt.dropped_turns :], SYSTEM)
        assert len(prompt.ids) <= room
        if prompt.dropped_turns != before:
            assert len(prompt.ids) <= room - (1 - LOW_WATER) * (room - 40)
        elif before:
            assert len(prompt.ids) > room / 2
        before = prompt.dropped_turns
        assert len(prompt.notes) == (before > 0)
    assert before > 20 and f"the {before} oldest turns were left out" in prompt.notes[0]


def test_one_turn_left_out_is_said_as_one() -> None:
    note = CHATML.encode(talk(["x" * 90, "yes", "why"]), "", 90).notes[0]
    assert "so the oldest turn was left out" in note


@pytest.mark.parametrize("kind", [*KINDS, "plain", "folded"])
def test_most_prompts_of_a_long_conversation_begin_with_the_whole_prompt_before(kind: str) -> None:
    sources = {"plain": None, "folded": tok.IGNORES_SYSTEM}
    template = FORMATS[kind] if kind in FORMATS else ChatTemplate(tok.byte_level(sources[kind]))
    history = numbered(60)
    made = prompts(template, history, 1200, "")
    kept = [b.ids[: len(a.ids)] == a.ids for a, b in pairwise(made)]
    moved = [a.dropped_turns != b.dropped_turns for a, b in pairwise(made)]
    assert made[-1].dropped_turns > 30
    assert kept == [not move for move in moved]
    assert sum(moved) <= 15


def test_replies_are_counted_by_the_ids_that_repeat_them() -> None:
    """Each reply has 40 ids that decode to one character in three bytes, so its text counts 120."""
    ids = (0xFF,) * 40
    reply = Message(A, text_of(BYTES, ids), ids)
    history = [turn for place in range(40) for turn in (Message(U, f"{place} ?"), reply)][:-1]
    made = prompts(CHATML, history, 1000)
    late = [len(prompt.ids) for prompt in made if prompt.dropped_turns]
    assert min(late) > 650
    assert sum(a.dropped_turns != b.dropped_turns for a, b in pairwise(made)) <= 12


def test_thoughts_that_the_template_leaves_out_are_not_counted() -> None:
    texts = [f"{place} ?" if place % 2 == 0 else "<think>" + "x" * 300 + "</think>yes" for place in range(99)]
    made = prompts(FORMATS["drops thought"], talk(texts), 1000)
    late = [len(prompt.ids) for prompt in made if prompt.dropped_turns]
    assert late
    assert min(late) > 650


@pytest.mark.parametrize("kind", [*KINDS, "only the last two", "assistant first"])
@given(
    texts=st.lists(st.text(alphabet="ax <|é\n", max_size=40).map("y{}".format), min_size=1, max_size=15),
    system=st.sampled_from(["", "user", "y" * 30]),
    room=st.integers(20, 400),
)
@settings(max_examples=40)
def test_a_prompt_fits_ends_in_the_last_turn_and_leaves_nothing_out_without_need(
    kind: str, texts: list[str], system: str, room: int
) -> None:
    template = FORMATS.get(kind, CHATML) if kind != "only the last two" else LAST_TWO
    history = talk(texts if len(texts) % 2 else texts[1:] or ["y"])
    if kind == "assistant first":
        history = [Message(A, "yes " * 9, tuple(b"yes " * 9)), *history]
    everything = template.encode(history, system, ROOM)
    last = template.encode(history[-1:], system, ROOM)
    if len(last.ids) > room and len(everything.ids) > room:
        with pytest.raises(PromptTooLong, match=rf"{len(last.ids)} tokens.* {room} fit.*or lower Max tokens"):
            template.encode(history, system, room)
        return
    prompt = template.encode(history, system, room)
    assert len(prompt.ids) <= room
    assert prompt == template.encode(history, system, room)
    starts = [place for place, turn in enumerate(history) if turn.role == U or place == 0]
    assert 0 <= prompt.dropped_turns < len(starts)
    assert prompt.ids == template.encode(history[starts[prompt.dropped_turns] :], system, ROOM).ids
    if len(everything.ids) <= room:
        assert prompt == everything


LAST_TWO = ChatTemplate(tok.byte_level(tok.CHATML.replace("in messages", "in messages[-2:]")))


@given(st.integers(0, 50), sizes_of_turns, st.integers(0, 400))
def test_what_was_dropped_stays_dropped_and_only_a_full_room_drops_more(
    head: int, turns: list[tuple[int, int]], room: int
) -> None:
    before = 0
    for end in range(1, len(turns) + 1):
        asked, answered = zip(*[*turns[: end - 1], (turns[end - 1][0], 3)], strict=True)
        now = first_kept(Sizes(head, asked, answered), room)
        size = head + sum(asked[now:]) + sum(answered[now:])
        assert before <= now < end
        assert size <= room or now == end - 1
        if now == before:
            assert size <= room or now == end - 1
        else:
            assert head + sum(asked[before:]) + sum(answered[before:]) > room
            assert size <= head + LOW_WATER * (room - head) or now == end - 1
        before = now
