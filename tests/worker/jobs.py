"""Tiny pairs for the worker, jobs, and what a page would make of the events."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from specchat.chat.conversation import Message
from specchat.chat.template import ChatTemplate
from specchat.decode.drafters import Forward
from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.pair import Pair
from specchat.reply import reply
from specchat.worker import Done, Ended, Event, Handle, Job, Live, Step, Task, Worker
from tests.fakes import Script, writes
from tests.rigs import engine_of, noisy, runner, tiny
from tests.tiny import TINY_VOCAB, tiny_tokenizer

GREEDY = Settings(4, Sampling(0.0), "model", 24)
TOKENIZER = tiny_tokenizer()
END = frozenset({TOKENIZER.eos_token_id})
SOON = 20.0
"""Seconds after which a test gives up: far more than anything here takes."""


def pair_of(target: Forward | None = None, draft: Forward | None = None) -> Pair:
    target, draft = target or runner(tiny(), 512), draft or runner(noisy(), 512)
    return Pair(
        engine=engine_of(target, draft, sorted(END)),
        tokenizer=TOKENIZER,
        template=ChatTemplate(TOKENIZER, END),
        target=target,  # type: ignore[arg-type]
        draft=draft,  # type: ignore[arg-type]
        target_name="tiny",
        draft_name="noisy",
        eos_ids=END,
        precision="float32",
    )


def job(
    text: str = "hello", settings: Settings = GREEDY, before: Sequence[Message] = (), **rest: object
) -> Job:
    return Job((*before, Message("user", text)), Live(settings), **rest)  # type: ignore[arg-type]


def events_of(handle: Handle) -> list[Event]:
    """All events; fails instead of hanging."""
    got: list[Event] = []
    for event in handle.events(SOON):
        assert event is not None, "the worker has gone silent"
        got.append(event)
    return got


def done_of(handle: Handle) -> Done:
    done = events_of(handle)[-1]
    assert isinstance(done, Done)
    return done


def shown(events: Sequence[Event]) -> str:
    """The text as a page would put it together."""
    text = ""
    for event in events:
        if isinstance(event, Step):
            text += "".join(piece.text for piece in event.pieces)
        elif isinstance(event, Done):
            text += event.tail
    return text


def cold(task: Job) -> Done:
    """The answer of a pair that has seen nothing else."""
    return reply(pair_of(), task, lambda: False, lambda event: None)


def scripted(text: str) -> tuple[Pair, list[int]]:
    """Target and draft both write `text` (no end token) in answer to "hello": every block is kept whole."""
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    prompt = len(ChatTemplate(TOKENIZER, END).encode([Message("user", "hello")], "", 400).ids)
    models = [Script(writes(ids, prompt, TINY_VOCAB), TINY_VOCAB) for _ in range(2)]
    return pair_of(*models), ids


def done_text(events: Sequence[Event]) -> str:
    assert isinstance(events[-1], Done)
    return events[-1].message.content


def steps_until(handle: Handle, count: int) -> list[Event]:
    got: list[Event] = []
    for event in handle.events(SOON):
        assert event is not None
        got.append(event)
        if sum(isinstance(e, Step) for e in got) == count:
            break
    return got


def idle(worker: Worker) -> None:
    """Waits until the engine thread is through with everything, what it measures between replies included."""
    assert isinstance(events_of(worker.submit(Task(lambda *_: None)))[-1], Ended)


def tensors() -> int:
    gc.collect()
    # By type: a proxy of something that is gone would raise if it were asked.
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
