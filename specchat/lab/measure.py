"""One reply measured: what race, tune, doctor and proof have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specchat.chat.conversation import Message
from specchat.chat.template import Prompt
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats

if TYPE_CHECKING:
    from specchat.pair import Pair


@dataclass(slots=True)
class Sample:
    """What one run gave. finished is None as long as it goes on."""

    settings: Settings
    rounds: list[Round] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    finished: Finished | None = None

    @property
    def ids(self) -> list[int]:
        """Every emitted id, in order."""
        return [token.id for event in self.rounds for token in event.tokens]


def prompt_of(pair: Pair, text: str, system: str = "", max_new_tokens: int = 512) -> Prompt:
    """A single question in the target's chat format. Raises PromptTooLong with a sentence."""
    return pair.template.encode((Message("user", text),), system, pair.room(max_new_tokens))


def prompt_ids(pair: Pair, text: str, system: str = "", max_new_tokens: int = 512) -> list[int]:
    """The ids of `prompt_of`."""
    return list(prompt_of(pair, text, system, max_new_tokens).ids)


def measure(
    pair: Pair,
    ids: Sequence[int],
    settings: Settings,
    cancelled: Callable[[], bool] = lambda: False,
    see: Callable[[Round], None] = lambda event: None,
    to_the_end: bool = False,
    cold: bool = True,
    stop: Callable[[int], bool] = lambda id: False,
    engine: Engine | None = None,
) -> Sample:
    """Runs a prompt over the pair's models and drafters; `see` is told each round as it ends.

    The engine is a new one unless one is given, which then keeps what it learns about γ from run to run; the chat's
    own is left as it is.
    to_the_end: end-of-sequence is ignored, so that every run has max_new_tokens tokens. cold: the prompt is read
    anew, whatever is cached. stop is told every emitted id and says whether it completed a stop string, as in
    `Engine.generate`. Raises RuntimeError with the sentence when the target fails.
    """
    if engine is None:
        engine = Engine(pair.target, pair.engine.drafters, frozenset() if to_the_end else pair.eos_ids)
    if cold:
        forget(pair)
    sample = Sample(settings)
    for event in engine.generate(list(ids), lambda: settings, stop, cancelled):
        if isinstance(event, Round):
            sample.rounds.append(event)
            sample.stats.add(event)
            see(event)
        else:
            sample.finished = event
    if sample.finished is not None and sample.finished.reason == "error":
        raise RuntimeError(sample.finished.notice)
    return sample


def forget(pair: Pair) -> None:
    """Empties the caches of target and drafters: the next prompt is read from its first id."""
    pair.target.reset()
    for drafter in pair.engine.drafters.values():
        drafter.reset()
