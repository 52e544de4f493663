"""A head over the target's states as drafter: what it is fed, what it forgets, and that the text stays plain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specchat.decode.drafters import READ_CHUNK, ChainDrafter
from specchat.decode.engine import Engine, Settings
from specchat.decode.head_drafter import HeadDrafter
from specchat.decode.ids import Ids
from specchat.decode.ngrams import NgramDrafter
from specchat.decode.sampling import Sampling, probs
from tests.fakes import Law, Script, arbitrary
from tests.oracle import GREEDY
from tests.rigs import Reply, collect

VOCAB = 7
PROMPT = [0, 3, 1, 4]


class ScriptHead:
    """Answers from a law over (0, the ids of its pairs). Its own states are negative; `Script`'s are places."""

    name = "scripted head"

    def __init__(self, law: Law, subset: Sequence[int] = range(VOCAB), capacity: int = 512) -> None:
        self.law = law
        self.subset = torch.tensor(subset)
        self.capacity = capacity
        self.pairs: list[tuple[float, int]] = []
        self.fed: list[int] = []
        """Pairs of each feed."""

    @property
    def length(self) -> int:
        return len(self.pairs)

    def feed(self, states: Tensor, ids: Ids) -> Tensor:
        assert states.shape == (len(ids), 1) and len(ids)
        first = len(self.pairs)
        values = ids.tolist() if isinstance(ids, Tensor) else ids
        self.pairs += zip(states[:, 0].tolist(), values, strict=True)
        assert len(self.pairs) <= self.capacity, "more was fed than the head holds"
        self.fed.append(len(ids))
        return -torch.arange(first + 1, len(self.pairs) + 1).float().unsqueeze(-1)

    def logits(self, outputs: Tensor) -> Tensor:
        places = [-int(place) for place in outputs[:, 0].tolist()]
        rows = [self.law((0, *(id for _, id in self.pairs[:place]))) for place in places]
        return torch.tensor(rows, dtype=torch.float32)[:, self.subset]

    def rollback(self, n: int) -> None:
        assert 0 <= n <= len(self.pairs)
        del self.pairs[len(self.pairs) - n :]

    def reset(self) -> None:
        self.pairs = []


TRUE = arbitrary(1, VOCAB)


def near(prefix: tuple[int, ...]) -> list[float]:
    """The target's law, wrong about every other time."""
    other = arbitrary(2, VOCAB)(prefix)
    return [a + 0.8 * b for a, b in zip(TRUE(prefix), other, strict=True)]


def rig(law: Law = near, **head: object) -> tuple[Engine, ScriptHead]:
    target = Script(TRUE, VOCAB, 256)
    scripted = ScriptHead(law, **head)  # type: ignore[arg-type]
    return Engine(target, {"head": HeadDrafter(target, scripted)}, frozenset()), scripted


def plain(prompt: Sequence[int], n: int) -> list[int]:
    text = list(prompt)
    for _ in range(n):
        row = TRUE(tuple(text))
        text.append(max(range(VOCAB), key=row.__getitem__))
    return text[len(prompt) :]


def run(engine: Engine, prompt: Sequence[int], settings: Settings) -> Reply:
    """A request whose head is looked at after every round: true pairs of the committed text, and nothing else."""
    drafter = engine.drafters[settings.drafter]
    assert isinstance(drafter, HeadDrafter)

    def each(committed: list[int]) -> None:
        head = drafter.head
        assert isinstance(head, ScriptHead)
        assert head.pairs == [(i, committed[i + 1]) for i in range(head.length)], (
            "a pair is not the committed text's"
        )
        assert drafter.cached() == head.length < len(committed)

    return collect(engine, prompt, settings, each=each)


@pytest.mark.parametrize("gamma", range(1, 6))
@pytest.mark.parametrize("subset", [range(VOCAB), [1, 2, 5]])
def test_greedy_text_is_the_plain_text(gamma: int, subset: Sequence[int]) -> None:
    engine, _ = rig(subset=subset)
    reply = run(engine, PROMPT, Settings(gamma, GREEDY, "head", 60))
    assert reply.ids == plain(PROMPT, 60) and reply.finished.notice == ""
    assert "a" in reply.origins and "r" in reply.origins, "a draft that is always right or wrong tests half"


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(0.8, 0, seed=3), Sampling(0.8, 3, 0.9, 0.05, 1.3, 0.2, 0.1, 3)]
)
def test_a_head_that_knows_the_targets_law_is_always_right(sampling: Sampling) -> None:
    engine, head = rig(TRUE)
    reply = run(engine, PROMPT, Settings(4, sampling, "head", 80))
    assert all(event.accepted == event.drafted == 4 for event in reply.rounds)
    assert all(event.draft_forwards == 4 for event in reply.rounds), "a round costs one forward a proposal"
    assert max(head.fed) <= 5, "a round feeds what was accepted, and no more"


def test_a_warm_cache_over_turns_is_as_good_as_a_cold_one() -> None:
    """Follow-up, edit, retry and an unrelated text; the head feeds only what is new to it."""
    engine, head = rig()
    settings = Settings(3, Sampling(0.9, 0, seed=11), "head", 12)
    text = [*PROMPT, *run(engine, PROMPT, settings).ids]
    for prompt in ([*text, 2, 2], [*text[:9], 6, 5], [*text[:9], 6, 5], [5, 5, 6], [*text[:7]]):
        known = head.length
        head.fed = []
        warm, cold = run(engine, prompt, settings), run(rig()[0], prompt, settings)
        assert warm.ids == cold.ids and warm.origins == cold.origins
        if prompt[: len(text)] == text:
            assert head.fed[0] == len(prompt) - 1 - known, "a follow-up turn re-read what it had"


def test_ids_outside_the_subset_are_never_proposed_and_q_is_the_law_over_the_others() -> None:
    subset = [0, 2, 3, 6]
    sampling = Sampling(0.7, 3, 0.95, 0.01, 1.4, 0.3, 0.2)
    target = Script(TRUE, VOCAB)
    drafter = HeadDrafter(target, ScriptHead(near, subset))
    text = [0, 3, 1, 4, 3, 6]
    target.read(text[:-1])
    drafter.start(text, lambda: True)
    proposal = drafter.propose(4, sampling, torch.Generator().manual_seed(1))
    ids = torch.as_tensor(proposal.ids).tolist()
    assert proposal.q is not None and len(proposal.q) == 4 and set(ids) <= set(subset)
    for i, id in enumerate(ids):
        before = [*text, *ids[:i]]
        logits = torch.full((1, VOCAB), -torch.inf)
        logits[0, subset] = torch.tensor(near((0, *before[1:])))[subset]
        right = probs(logits, before, sampling)[0]
        torch.testing.assert_close(proposal.q.dense(VOCAB)[i], right)
        assert right[id] > 0


def test_a_long_prompt_is_read_in_chunks_and_reading_can_be_cancelled() -> None:
    target = Script(TRUE, VOCAB, 1024)
    head = ScriptHead(near, capacity=1024)
    drafter = HeadDrafter(target, head)
    text = [i % VOCAB for i in range(3 * READ_CHUNK)]
    target.read(text[:-1])
    drafter.start(text, lambda: False)
    assert head.length == 0
    drafter.start(text, lambda: True)
    assert len(drafter.propose(2, GREEDY, torch.Generator()).ids) == 2 and max(head.fed) == READ_CHUNK
    assert head.pairs == [(i, text[i + 1]) for i in range(len(text) - 1)]


@pytest.mark.parametrize("known", [0, 1, 3])
def test_pairs_whose_state_the_target_lacks_are_not_made_up(known: int) -> None:
    target = Script(TRUE, VOCAB)
    drafter = HeadDrafter(target, ScriptHead(near))
    if known:
        target.read(PROMPT[:known])
    drafter.start(PROMPT, lambda: True)
    assert len(drafter.propose(2, GREEDY, torch.Generator()).ids) == (2 if known == 3 else 0)


def test_one_id_has_no_pair_yet() -> None:
    engine, _ = rig()
    reply = run(engine, [2], Settings(3, GREEDY, "head", 10))
    assert reply.ids == plain([2], 10) and reply.rounds[0].drafted == 0 and "a" in reply.origins


@pytest.mark.parametrize("capacity", [3, 6, 7, 8])
def test_a_head_with_less_room_than_the_text_falls_silent(capacity: int) -> None:
    engine, head = rig(capacity=capacity)
    reply = run(engine, PROMPT, Settings(3, GREEDY, "head", 30))
    assert reply.ids == plain(PROMPT, 30) and reply.finished.notice == "" and head.length <= capacity
    assert reply.rounds[0].drafted > 0 and reply.rounds[-1].drafted == 0


def test_rounds_that_another_drafter_served_are_caught_up_in_one_forward() -> None:
    target = Script(TRUE, VOCAB, 256)
    head = ScriptHead(near)
    own = HeadDrafter(target, head)
    engine = Engine(target, {"chain": ChainDrafter(NgramDrafter(), own)}, frozenset())
    reply = collect(engine, PROMPT, Settings(3, GREEDY, "chain", 60))
    assert reply.ids == plain(PROMPT, 60)
    assert {event.drafter for event in reply.rounds} >= {"ngram", "scripted head"}
    assert all(e.draft_forwards <= e.gamma for e in reply.rounds) and max(head.fed) > 4


def test_a_failing_head_costs_the_draft_and_not_the_reply() -> None:
    engine, head = rig()

    def broken(states: Tensor, ids: Ids) -> Tensor:
        raise RuntimeError("out of memory")

    head.feed = broken  # type: ignore[method-assign]
    reply = collect(engine, PROMPT, Settings(3, GREEDY, "head", 20))
    assert reply.ids == plain(PROMPT, 20) and "out of memory" in reply.finished.notice
    del head.feed
    again = run(engine, PROMPT, Settings(3, GREEDY, "head", 20))
    assert again.ids == reply.ids and "a" in again.origins
