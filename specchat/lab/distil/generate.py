"""The target writes conversations: it opens a user's turn, ends it, and answers it, many at once.

An instruction model has read enough requests to write one. What it computes on the way is kept: its last hidden
state of every id and the best logits of the law that follows, so the trainer never has to run the target.
Drawing at other settings than one trains for is no harm: the law is learned at every place, not the draw.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specchat.lab.distil.batch import BatchDecoder
from specchat.lab.distil.shards import ASSISTANT, TEMPLATE, TOP, USER, Record, Shards
from specchat.lab.distil.turns import Turns
from specchat.model.compact import CompactDecoder
from specchat.model.errors import UnsupportedModel

SHARD_TOKENS = 50_000
_LARGEST = float(torch.finfo(torch.float16).max)


@dataclass(frozen=True, slots=True)
class Style:
    """How turns are drawn: (temperature, top-k) of each speaker, and how long and how varied they are."""

    user: tuple[float, int] = (0.9, 50)
    reply: tuple[float, int] = (0.6, 20)
    longest_user: int = 320
    longest_reply: int = 384
    opened: float = 0.72
    """Share of conversations whose first words are given."""
    pasted: float = 0.25
    """Share of those in which they ask for something about a text that follows."""
    second: float = 0.3
    """Share with a second question, where there is room for it."""
    varied: float = 0.4
    """A reply with fewer different 4-grams than this share is going round in circles, and is thrown away."""

    def fitted(self, capacity: int) -> Style:
        """The same with turns that leave room in so many places."""
        user, reply = min(self.longest_user, capacity // 4), min(self.longest_reply, capacity // 2)
        return replace(self, longest_user=user, longest_reply=reply)


@dataclass(slots=True)
class Slot:
    """A conversation being written. forced: ids with their roles that are fed before anything is drawn."""

    record: Record
    forced: list[tuple[int, int]]
    turns: int
    """Replies still to come."""
    speaker: int = USER
    spoken: int = 0
    """Ids of the present turn."""
    drawn: int = -1

    def take(self) -> int:
        """The id to feed now."""
        token, role = self.forced.pop(0) if self.forced else (self.drawn, self.speaker)
        self.spoken += role == self.speaker
        self.record.ids.append(token)
        self.record.roles.append(role)
        return token


class Author:
    """Steps all slots together, refills those that are done. Deterministic for a seed and a machine."""

    def __init__(
        self, target: CompactDecoder, turns: Turns, openings: Sequence[Sequence[int]], style: Style,
        slots: int, seed: str, capacity: int = 1024, passages: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        """openings: first words as ids; passages: those that a text follows; seed: of everything that is drawn."""
        capacity = min(capacity, target.capacity)
        self.style = style.fitted(capacity)
        self._frame = len(turns.to_reply) + len(turns.to_user)
        longest = (
            max(map(len, (*openings, *passages)), default=0)
            + self.style.longest_user
            + self.style.longest_reply
        )
        self._exchange = longest + self._frame + 2
        """Places that a question and its reply take at most."""
        if len(turns.opening) + self._exchange > capacity:
            raise UnsupportedModel(
                f"This target's context of {capacity} tokens is too short for a conversation in its chat format; "
                "raise --context, or choose another target."
            )
        self.turns = turns
        self.openings = openings
        self.passages = passages
        self.dropped = 0
        """Conversations thrown away."""
        self._rng = random.Random(seed)
        self._draws = torch.Generator().manual_seed(self._rng.getrandbits(62))
        self._decoder = BatchDecoder(target, slots + 1, capacity)
        self._opening = slots
        self._opened = self._read_opening()
        self._slots = [self._fresh(slot) for slot in range(slots)]

    @property
    def unfinished(self) -> int:
        """Ids in conversations that are being written."""
        return sum(len(slot.record.ids) for slot in self._slots)

    def step(self) -> list[Record]:
        """One id for every slot; the conversations that are finished now."""
        ids = [slot.take() for slot in self._slots]
        states = self._decoder.step(range(len(ids)), ids)
        best, choices = self._draw(self._decoder.logits(states))
        self._keep([slot.record for slot in self._slots], states, best)
        done = []
        for i, slot in enumerate(self._slots):
            if slot.forced:
                continue
            going = self._hear(slot, choices[i])
            if going is None:
                done.append(slot.record)
            self.dropped += going is False
            if not going:
                self._slots[i] = self._fresh(i)
        return done

    def _hear(self, slot: Slot, choice: int) -> bool | None:
        """What the id just fed and the one drawn after it mean: True goes on, None is finished, False is no good."""
        user = slot.speaker == USER
        end = self.turns.user_end if user else self.turns.reply_end
        over = slot.spoken > 0 and slot.record.ids[-1] == end
        if not user and (over or slot.spoken >= self.style.longest_reply or slot.spoken % 64 == 63):
            if self._circles(slot):
                return False
            if not over and slot.spoken >= self.style.longest_reply:
                return None
        if over:
            slot.turns -= not user
            if not user and (slot.turns == 0 or self._is_full(slot)):
                return None
            frame = self.turns.to_reply if user else self.turns.to_user
            slot.forced = [(token, TEMPLATE) for token in frame[1:]]
            slot.speaker, slot.spoken = (ASSISTANT if user else USER), 0
            if slot.forced:
                return True
            end = self.turns.reply_end if user else self.turns.user_end
        if choice in self.turns.controls or (slot.speaker == USER and slot.spoken >= self.style.longest_user):
            choice = end
            if slot.spoken == 0:
                return False
        slot.drawn = choice
        return True

    def _is_full(self, slot: Slot) -> bool:
        return len(slot.record.ids) + self._exchange > self._decoder.capacity

    def _circles(self, slot: Slot) -> bool:
        reply = slot.record.ids[-slot.spoken :]
        return any(_looping(part, self.style.varied) for part in (reply, reply[-96:]))

    def _draw(self, logits: Tensor) -> tuple[tuple[Tensor, Tensor], list[int]]:
        """The best logits of each row with their ids, and an id drawn from them at its slot's settings."""
        most = max(self.style.user[1], self.style.reply[1], TOP)
        values, ids = logits.cpu().topk(min(most, logits.shape[-1]))
        settings = [self.style.user if slot.speaker == USER else self.style.reply for slot in self._slots]
        temperatures = torch.tensor([[temperature] for temperature, _ in settings])
        kept = torch.tensor([[top_k] for _, top_k in settings])
        hidden = torch.arange(values.shape[-1]) >= kept
        law = (values / temperatures).masked_fill(hidden, float("-inf")).softmax(-1)
        columns = torch.multinomial(law, 1, generator=self._draws)
        return (values, ids), ids.gather(1, columns).squeeze(1).tolist()

    def _keep(self, records: Sequence[Record], states: Tensor, best: tuple[Tensor, Tensor]) -> None:
        rows = states.float().cpu().clamp(-_LARGEST, _LARGEST).half().numpy()
        logits = best[0][:, :TOP].clamp(-_LARGEST, _LARGEST).half().numpy()
        ids = best[1][:, :TOP].numpy()
        for i, record in enumerate(records):
            record.states.append(rows[i])
            record.top_ids.append(ids[i])
            record.top_logits.append(logits[i])

    def _read_opening(self) -> Record:
        """What comes before every first message is read once. Its last id is left: its law opens the turn."""
        record = Record([], [], [], [], [])
        for token in self.turns.opening[:-1]:
            states = self._decoder.step([self._opening], [token])
            values, ids = self._decoder.logits(states).cpu().topk(TOP)
            self._keep([record], states, (values, ids))
            record.ids.append(token)
            record.roles.append(TEMPLATE)
        return record

    def _start(self) -> Sequence[int]:
        """First words."""
        pasted = self.passages and self._rng.random() < self.style.pasted
        return self._rng.choice(self.passages if pasted else self.openings)

    def _fresh(self, slot: int) -> Slot:
        self._decoder.copy(self._opening, slot)
        start = self._start() if self._rng.random() < self.style.opened else ()
        forced = [(self.turns.opening[-1], TEMPLATE), *((token, USER) for token in start)]
        read = self._opened
        record = Record([*read.ids], [*read.roles], [*read.states], [*read.top_ids], [*read.top_logits])
        return Slot(record, forced, 2 if self._rng.random() < self.style.second else 1)


def _looping(ids: Sequence[int], varied: float) -> bool:
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return len(grams) > 30 and len(set(grams)) < varied * len(grams)


class Meter:
    """A line now and then: a bar, the time left, the rate of this run."""

    def __init__(self, goal: int, say: Callable[[str], None], every_s: float = 15.0) -> None:
        self.goal = goal
        self.say = say
        self.every_s = every_s
        self._began = self._told = time.monotonic()
        self._at_first: int | None = None

    def tell(self, finished: int, unfinished: int, dropped: int) -> None:
        """So many ids are there in finished conversations, so many in others."""
        now = time.monotonic()
        if self._at_first is None:
            self._at_first = finished + unfinished
        if now - self._told >= self.every_s:
            self._told = now
            rate = (finished + unfinished - self._at_first) / (now - self._began)
            self.say(self.line(finished, rate, dropped))

    def line(self, have: int, rate: float, dropped: int) -> str:
        """rate: ids a second."""
        have = min(self.goal, have)
        left = round((self.goal - have) / max(rate, 1e-9))
        bar = "#" * (20 * have // max(1, self.goal))
        return (
            f"[{bar:.<20}] {have / max(1, self.goal):4.0%} {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left, "
            f"{have:,} of {self.goal:,} tokens, {rate:.0f} tokens/s, {dropped} conversations thrown away"
        )


def write(
    author: Author, shards: Shards, tokens: int, go_on: Callable[[], bool], say: Callable[[str], None],
    shard_tokens: int = SHARD_TOKENS,
) -> None:  # fmt: skip
    """Until the shards hold `tokens` ids, or `go_on` says no; finished conversations are on disk afterwards.

    What was unfinished at the end is lost: a conversation is written in one run.
    """
    meter = Meter(tokens, say)
    while (have := shards.tokens + shards.pending) < tokens and go_on():
        meter.tell(have, author.unfinished, author.dropped)
        shards.waiting += author.step()
        if shards.pending >= shard_tokens:
            shards.flush()
    shards.flush()
