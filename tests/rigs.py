"""What the engine tests run: engines over tiny pairs, and requests checked at every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from transformers import PreTrainedModel

from specchat.decode.drafters import ChainDrafter, Drafter, Forward, ModelDrafter
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Finished, Round
from specchat.decode.ngrams import NgramDrafter
from specchat.model.runner import Runner
from tests.tiny import TINY_VOCAB, Kind, noisy_copy, tiny_model

# -- engines and replies ----------------------------------------------------------------------------


def small_model(seed: int = 0, vocab: int = 8, **overrides: object) -> PreTrainedModel:
    """A real Llama with a vocabulary small enough to enumerate."""
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    return tiny_model("llama", seed, vocab, **{**ids, **overrides})


def engine_of(target: Forward, draft: Forward | None = None, eos: Sequence[int] = ()) -> Engine:
    """The engine as a pair has it: n-grams alone, and with a draft also the model and the chain of both."""
    drafters: dict[str, Drafter] = {"ngram": NgramDrafter()}
    if draft is not None:
        model = ModelDrafter(draft)
        drafters |= {"model": model, "chain": ChainDrafter(NgramDrafter(), model)}
    return Engine(target, drafters, frozenset(eos))


@dataclass
class Reply:
    """Everything one request gave back."""

    ids: list[int]
    rounds: list[Round]
    finished: Finished

    @property
    def origins(self) -> str:
        """First letters of the origins: a(ccepted) r(ecovered) b(onus) p(lain)."""
        return "".join(token.origin[0] for event in self.rounds for token in event.tokens)


def collect(
    engine: Engine,
    prompt: Sequence[int],
    settings: Settings | Callable[[], Settings],
    stop: Callable[[int], bool] = lambda token: False,
    cancelled: Callable[[], bool] = lambda: False,
    each: Callable[[list[int]], None] = lambda committed: None,
) -> Reply:
    """Runs a request; at every round checks the cache invariant and calls `each` with the committed ids."""
    committed, rounds = list(prompt), []
    current = Settings()

    def read() -> Settings:
        nonlocal current
        current = settings() if callable(settings) else settings
        return current

    for event in engine.generate(prompt, read, stop, cancelled):
        if isinstance(event, Finished):
            check_caches(engine, committed, current, interrupted=event.reason == "error")
            check_rounds(rounds, event)
            return Reply(committed[len(prompt) :], rounds, event)
        rounds.append(event)
        committed.extend(token.id for token in event.tokens)
        check_caches(engine, committed, current)
        each(committed)
    raise AssertionError("a request ended without Finished")


def drafts_of(engine: Engine, settings: Settings | None = None) -> list[ModelDrafter]:
    """The model drafters, also those inside a chain; with settings, only those that they put to use."""
    named = engine.drafters
    if settings is not None:
        named = (
            {settings.drafter: named[settings.drafter]}
            if settings.gamma and settings.drafter in named
            else {}
        )
    links = [
        link
        for drafter in named.values()
        for link in (drafter.links if isinstance(drafter, ChainDrafter) else [drafter])
    ]
    return [link for link in links if isinstance(link, ModelDrafter)]


def check_caches(
    engine: Engine, committed: list[int], settings: Settings | None = None, interrupted: bool = False
) -> None:
    """cached = committed - pending, for target and draft; pending ≥ 1 between rounds.

    An interrupted draft may hold the whole text: nothing but committed ids, and `start` comes before its next
    use. So it does before that of a draft that these settings do not use, or that has rested since the request
    began: what it holds is its own affair.
    """
    drafts = drafts_of(engine, settings)
    if settings is not None and (settings.adaptive or settings.guard):
        drafts = [drafter for drafter in drafts if drafter.committed == committed]
    for model in (engine.target, *(drafter.model for drafter in drafts)):
        assert model.ids == committed[: len(model.ids)], "a cache holds ids that are not the committed text"
        if model is engine.target or not interrupted:
            assert len(model.ids) < max(1, len(committed)), (
                "nothing is pending: the next round has nothing to feed"
            )


def check_rounds(rounds: Sequence[Round], finished: Finished) -> None:
    """What every reply's events must say about themselves."""
    assert [event.index for event in rounds] == list(range(len(rounds)))
    assert finished.emitted == sum(len(event.tokens) for event in rounds), (
        "emitted is the sum over the rounds"
    )
    for event in rounds:
        assert 0 <= event.accepted <= event.drafted <= event.gamma
        assert len(event.tokens) in (event.accepted, event.accepted + 1)
        assert sum(token.origin == "accepted" for token in event.tokens) == event.accepted
        assert [token.position for token in event.tokens] == list(range(len(event.tokens)))
        assert event.target_forwards == 1, "one target forward a round"


def runner(model: PreTrainedModel, capacity: int = 256, vocab: int = TINY_VOCAB) -> Runner:
    """A runner over the whole tokenizer's vocabulary."""
    return Runner(model, vocab, capacity)


@cache
def tiny(kind: Kind = "llama", seed: int = 0, attention: str = "sdpa") -> PreTrainedModel:
    """A tiny model, built once: models are read only, every runner has its own cache.

    attention "sdpa": as far as the class has it (Gemma 2 does not).
    """
    model = tiny_model(kind, seed)
    if attention != "sdpa" or model._supports_sdpa:
        model.set_attn_implementation(attention)
    return model


@cache
def noisy(kind: Kind = "llama", noise: float = 0.05) -> PreTrainedModel:
    """`tiny(kind)` with noise on its weights: a draft that is right about every other time."""
    return noisy_copy(tiny(kind), noise)
