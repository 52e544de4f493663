"""A round makes the host wait for the device once; what it does not know until then is never left behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from specchat.decode import engine as engine_module
from specchat.decode.clock import CudaClock, HostClock
from specchat.decode.drafters import ChainDrafter, Drafter, ModelDrafter
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Reason, Round
from specchat.decode.head_drafter import HeadDrafter
from specchat.decode.ids import UNKNOWN
from specchat.decode.ngrams import NgramDrafter
from specchat.decode.request import Request
from specchat.decode.sampling import Sampling
from specchat.model import stack
from specchat.model.compact import CompactDecoder
from tests.decode.test_head_drafter import ScriptHead
from tests.fakes import Script, Watched, arbitrary, failing
from tests.model.test_head import head_for
from tests.oracle import GREEDY, reference
from tests.reads import Reads
from tests.rigs import collect, engine_of, noisy, runner, tiny
from tests.tiny import TINY_VOCAB, noisy_copy, tiny_model

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
LAWS = {
    "greedy": GREEDY,
    "top-k, top-p and min-p": Sampling(0.9, 20, 0.95, 0.02, seed=1),
    "top-p alone": Sampling(0.9, 0, 0.9, seed=1),
    "everything": Sampling(1.1, 0, 1.0, 0.0, seed=1),
    "penalties": Sampling(0.9, 20, 0.95, 0.0, 1.2, 0.3, 0.2, seed=1),
}


@pytest.mark.parametrize(
    "read",
    [
        lambda x: int(x[0]), lambda x: bool(x[0] > 1), lambda x: float(x[1]), lambda x: x[2].item(),
        lambda x: x.tolist(), lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.numpy(),
        lambda x: x.nonzero(), lambda x: torch.equal(x, x), lambda x: x[x > 0], lambda x: x[x[1]],
        lambda x: list(range(x[2])), lambda x: x.unique(), lambda x: torch.bincount(x),
        lambda x: torch.repeat_interleave(x), lambda x: x.masked_select(x > 0),
    ],
)  # fmt: skip
def test_the_counter_sees_every_way_to_read(read: Callable[[Tensor], object]) -> None:
    x = torch.arange(3)
    with torch.inference_mode(), Reads() as reads:
        x.gather(0, x), x[:2], x.clamp(max=1), x.index_select(0, x), x[x], x.take(x)
        assert reads.found == []
        read(x)
    assert reads.found


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes as on a GPU: the kernels of a CPU (`model.few`) read from memory that is theirs."""
    monkeypatch.setattr(stack, "MOST_ROWS", 0)


class Counted(Engine):
    """Notes what each round read."""

    def __init__(self, target: CompactDecoder, drafter: Drafter) -> None:
        super().__init__(target, {"it": drafter}, frozenset())
        self.reads: list[list[str]] = []

    def round(self, request: Request, settings: Settings) -> tuple[Round, Reason | None]:
        with Reads() as reads:
            found = super().round(request, settings)
        self.reads.append(reads.found)
        return found


def decoder(model: object) -> CompactDecoder:
    return CompactDecoder.from_module(model, TINY_VOCAB, 128, "float32")  # type: ignore[arg-type]


def model(target: CompactDecoder) -> Drafter:
    return ModelDrafter(decoder(noisy()))


def head(target: CompactDecoder) -> Drafter:
    return HeadDrafter(target, head_for(target))


def chain(target: CompactDecoder) -> Drafter:
    return ChainDrafter(NgramDrafter(), model(target))


DRAFTERS = {"model": model, "head": head, "chain": chain}


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("drafter", list(DRAFTERS))
def test_a_round_reads_the_device_once_however_large_gamma_is(drafter: str, law: str) -> None:
    """Plain rounds too, and those in which the chain's n-grams propose and its model catches up later."""
    target = decoder(tiny())
    engine = Counted(target, DRAFTERS[drafter](target))
    gammas = itertools.cycle(range(9))
    reply = collect(engine, PROMPT, lambda: Settings(next(gammas), LAWS[law], "it", 50))
    assert {event.drafted for event in reply.rounds} >= {0, 1, 4, 8} and len(reply.rounds) >= 9
    assert engine.reads == [["tolist"]] * len(reply.rounds)


def test_a_confidence_costs_a_read_a_proposal() -> None:
    target = decoder(tiny())
    engine = Counted(target, model(target))
    collect(engine, PROMPT, Settings(4, LAWS["everything"], "it", 6, confidence=1e-9))
    assert [len(reads) for reads in engine.reads[:-1]] == [5] * (len(engine.reads) - 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("drafter", ["model", "head", "chain"])
def test_cuda_itself_finds_no_other_wait_in_a_round(
    drafter: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = decoder(tiny_model("llama").to("cuda"))
    own: Drafter
    if drafter == "head":
        own = HeadDrafter(target, head_for(target))
    else:
        own = ModelDrafter(decoder(noisy_copy(tiny_model("llama"), 0.05).to("cuda")))
    if drafter == "chain":
        own = ChainDrafter(NgramDrafter(), own)
    engine = Engine(target, {"it": own}, frozenset())
    settings = Settings(4, LAWS[law], "it", 40)
    collect(engine, PROMPT, settings)  # what is allocated and looked up once is there now
    inner, read, waits = engine.round, engine_module.read, list[int]()

    def watched(request: Request, now: Settings) -> tuple[Round, Reason | None]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return inner(request, now)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def allowed(packed: Tensor) -> object:
        torch.cuda.set_sync_debug_mode("default")
        waits.append(len(packed))
        found = read(packed)
        torch.cuda.set_sync_debug_mode("error")
        return found

    monkeypatch.setattr(engine, "round", watched)
    monkeypatch.setattr(engine_module, "read", allowed)
    reply = collect(engine, PROMPT, settings)
    assert reply.finished.reason == "length" and reply.finished.notice == ""
    assert len(waits) == len(reply.rounds) and all(event.verify_s > 0 for event in reply.rounds)


# -- what the host does not know --------------------------------------------------------------------------


def lists(engine: Engine) -> list[int]:
    drafter = engine.drafters["model"]
    assert isinstance(drafter, ModelDrafter)
    return [*engine.target.ids, *drafter.model.ids]


def ends(drafted: Script, target: Script, at: int, who: str) -> Engine:
    error = RuntimeError("trouble")
    if who == "target":
        return engine_of(failing(target, at, error), drafted)
    return engine_of(target, failing(drafted, at, error))


@pytest.mark.parametrize("who", ["target", "draft", "stop", "closed"])
@pytest.mark.parametrize("at", range(1, 9))
def test_no_placeholder_is_ever_left_outside_a_round(who: str, at: int) -> None:
    """Whoever fails, and wherever; and they are there while a round runs."""
    target, draft = Script(arbitrary(1, 5), 5), Script(arbitrary(2, 5), 5)
    engine = ends(draft, target, at if who in ("target", "draft") else 10**6, who)
    seen, told = list[bool](), 0

    def stop(token: int) -> bool:
        nonlocal told
        told += 1
        seen.append(UNKNOWN in draft.ids)
        if who == "stop" and told == at:
            raise ValueError("text trouble")
        return False

    events = engine.generate([0, 1, 2], lambda: Settings(4, GREEDY, "model", 12), stop)
    for place, event in enumerate(events):
        assert UNKNOWN not in lists(engine), f"after {event}"
        if who == "closed" and place == at // 3:
            break
    events.close()  # type: ignore[attr-defined]
    assert UNKNOWN not in lists(engine)
    assert who in ("target", "draft") or any(seen), "the ids were known all along: nothing was tested"
    again = collect(engine, [0, 1, 2], Settings(4, GREEDY, "model", 12))
    assert again.ids == reference(Script(arbitrary(1, 5), 5), [0, 1, 2], 12).ids


def test_an_interrupt_in_a_targets_forward_leaves_no_placeholder() -> None:
    draft = Script(arbitrary(2, 5), 5)
    engine = engine_of(failing(Script(arbitrary(1, 5), 5), 3, KeyboardInterrupt()), draft)
    with pytest.raises(KeyboardInterrupt):
        list(engine.generate([0, 1, 2], lambda: Settings(4, GREEDY, "model", 12)))
    assert draft.ids and UNKNOWN not in lists(engine)


# -- rows that are no law ---------------------------------------------------------------------------------


def bad_from(place: int, bad: float) -> Callable[[tuple[int, ...]], list[float]]:
    """The target's own law; behind so many ids nothing that could be drawn from."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        row = list(arbitrary(1, 5)(prefix))
        if len(prefix) == place:
            row = [bad] * 5 if bad == -math.inf else [*row[:4], bad]
        return row

    return law


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(0.8, 3), Sampling(0.8, 0, 0.9), Sampling(1.0, 0)], ids=str
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [3, 4, 6, 8])
@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_bad_row_of_the_draft_drops_it_and_the_round_goes_on_plainly(
    sampling: Sampling, bad: float, place: int, kind: str
) -> None:
    target = Watched(Script(arbitrary(1, 5), 5))
    law = bad_from(place, bad)
    drafter: Drafter = (
        ModelDrafter(Script(law, 5)) if kind == "model" else HeadDrafter(target, ScriptHead(law, range(5)))
    )
    engine = Engine(target, {"it": drafter}, frozenset())
    reply = collect(engine, [0, 1, 2], Settings(4, sampling, "it", 12))
    assert (
        reply.finished.reason == "length" and "The draft failed (The model returned" in reply.finished.notice
    )
    at = 0 if place < 8 else 1
    assert reply.origins == "aaaab"[: 5 * at] + "p" * (12 - 5 * at), "the draft was dropped in another round"
    assert target.calls == 1 + len(reply.rounds), "the bad round asked the target twice"
    if sampling.greedy:
        assert reply.ids == reference(Script(arbitrary(1, 5), 5), [0, 1, 2], 12).ids


def test_a_bad_drafts_proposals_leave_nothing_in_a_real_cache() -> None:
    """Its keys and values have a length of their own."""
    engine = engine_of(runner(tiny()), Script(lambda prefix: [math.nan] * TINY_VOCAB, TINY_VOCAB))
    reply = collect(engine, PROMPT, Settings(4, GREEDY, "model", 12))
    reference(tiny(), PROMPT, 12).check(reply.ids)
    assert reply.origins == "p" * 12 and "not numbers" in reply.finished.notice


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(3, 9))
def test_a_bad_row_of_the_target_ends_the_reply_with_the_sentence_though_greedy_could_hide_it(
    bad: float, place: int
) -> None:
    engine = engine_of(Script(bad_from(place, bad), 5), Script(arbitrary(1, 5), 5))
    reply = collect(engine, [0, 1, 2], Settings(4, GREEDY, "model", 12))
    assert reply.finished.reason == "error" and "not numbers" in reply.finished.notice
    assert reply.ids == reference(Script(arbitrary(1, 5), 5), [0, 1, 2], 12).ids[: len(reply.ids)]
    assert UNKNOWN not in lists(engine)


# -- time -------------------------------------------------------------------------------------------------


class Told:
    """A clock that says what the test says."""

    def __init__(self) -> None:
        self.marks = 0

    def mark(self) -> None:
        self.marks += 1

    def seconds(self) -> list[float]:
        assert self.marks == 4, "before the draft, behind it, behind the target and behind the verdict"
        return [1e-9, 2e-9, 3e-9]


def test_the_parts_of_a_round_are_the_clocks_and_the_host_has_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "clock_for", lambda device: Told())
    engine = engine_of(Script(arbitrary(1, 5), 5), Script(arbitrary(2, 5), 5))
    reply = collect(engine, [0, 1, 2], Settings(4, GREEDY, "model", 12))
    for event in reply.rounds:
        assert (event.draft_s, event.verify_s, event.sample_s) == (1e-9, 2e-9, 3e-9) and event.host_s > 1e-6
    monkeypatch.setattr(Told, "seconds", lambda self: [10.0, 20.0, 30.0])
    reply = collect(engine, [0, 1, 2], Settings(4, GREEDY, "model", 12))
    assert all(event.host_s == 0 for event in reply.rounds), "two clocks that differ made a time negative"


def test_cuda_events_are_read_in_seconds_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Iterator[int] = iter((3, 5, 9, 10))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert stream == "the stream"
            self.at = next(ticks)

        def elapsed_time(self, end: Event) -> float:
            return 1e3 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream")
    for clock in (CudaClock(torch.device("cuda")), HostClock()):
        for _ in range(4):
            clock.mark()
        found = clock.seconds()
        assert len(found) == 3 and min(found) >= 0
        assert isinstance(clock, HostClock) or found == [2, 4, 1]
