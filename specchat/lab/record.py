"""A reply as words and as data: the stats line under it, the record that `--json` prints, and the one kept in a file."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats
from specchat.lab.record_parts import Beat, Change, Head, MemoryFacts, PairFacts, Record, Said, Values
from specchat.lab.record_write import summary
from specchat.lab.words import REASONS, nothing_drafted

if TYPE_CHECKING:
    # Not at run time: a record is replayed without torch.
    from specchat.chat.stream import Piece
    from specchat.decode.engine import Settings
    from specchat.pair import Pair
    from specchat.worker import Done, Event, Job, Reading

RECORD_VERSION = 1

Spell = Callable[[int], str]
"""Id → text."""


def stats_line(finished: Finished, stats: Stats) -> str:
    """tokens · seconds · tok/s · time to first token · tokens/round · acceptance · reused/read · why it ended."""
    return line_of_numbers(finished.seconds, stats, REASONS[finished.reason])


def line_of_numbers(seconds: float, stats: Stats, ended: str) -> str:
    """The same for a reply of which only the seconds are known. ended: how, in words."""
    parts = [
        f"{stats.emitted} tokens",
        f"{seconds:.1f} s",
        f"{stats.tok_per_s:.1f} tok/s",
        f"first token {stats.first_token_s:.2f} s",
        f"{stats.tokens_per_round:.2f} tokens/round",
        f"acceptance {stats.acceptance_rate:.0%}" if stats.drafted else nothing_drafted(stats),
    ]
    if stats.prefill is not None:
        parts.append(f"prompt {stats.prefill.reused} reused + {stats.prefill.read} read")
    return " · ".join([*parts, ended])


def record(pair: Pair, job: Job, done: Done, rounds: Sequence[Round]) -> dict[str, object]:
    """Everything about one reply: what was asked, with which models, settings and software, and every round."""
    return {
        "version": RECORD_VERSION,
        "pair": {"target": pair.target_name, "draft": pair.draft_name, "device": str(pair.target.device)},
        "versions": versions(),
        "hardware": hardware(),
        "settings": dataclasses.asdict(job.live.get()),
        "system": job.system,
        "messages": [{"role": message.role, "content": message.content} for message in job.messages],
        "reply": done.message.content,
        "finished": dataclasses.asdict(done.finished),
        "stats": {**summary(done.stats), "plain_step_s": pair.plain_step_s},
        "rounds": [dataclasses.asdict(event) for event in rounds],
    }


def versions() -> Values:
    """Of what the numbers depend on."""
    found: dict[str, object] = {"python": platform.python_version()}
    for name in ("torch", "transformers", "gradio"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def hardware() -> Values:
    """The machine, without anything that names it."""
    import torch

    from specchat.model.threads import in_use

    found: dict[str, object] = {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": in_use(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def facts(pair: Pair) -> PairFacts:
    """What a record says of the pair, as it is now; the models are not called."""
    memory = MemoryFacts(**dataclasses.asdict(pair.memory()))
    return PairFacts(
        pair.target_name, pair.draft_name, str(pair.target.device), pair.precision, tuple(pair.notes),
        pair.plain_step_s, pair.plain_step_source, memory,
    )  # fmt: skip


def record_of(
    job: Job,
    pair: PairFacts | None,
    reading: Reading | None,
    rounds: Sequence[Round],
    pieces: Sequence[Piece],
    in_force: Sequence[Settings | None],
    finished: Finished,
    tail: str,
    spell: Spell,
) -> Record:
    """A finished reply as it is kept. in_force: the settings of each round; tail: text that no token completed.

    spell: id → text, for the proposals that were turned down.
    """
    texts: list[list[str]] = [[] for _ in rounds]
    for piece in pieces:
        texts[piece.round_index].append(piece.text)
    beats = tuple(
        Beat(event, tuple(own), _turned_down(event, spell)) for event, own in zip(rounds, texts, strict=True)
    )
    settings = [dataclasses.asdict(now or job.live.get()) for now in in_force]
    changes = tuple(Change(n, now) for n, now in enumerate(settings) if n and now != settings[n - 1])
    head = Head(
        written=datetime.now().astimezone().isoformat(timespec="seconds"),
        pair=pair or PairFacts("unknown"),
        settings=settings[0] if settings else dataclasses.asdict(job.live.get()),
        messages=tuple(Said(message.role, message.content) for message in job.messages),
        system=job.system,
        stop_strings=tuple(job.stop_strings),
        prompt_tokens=reading.prompt_tokens if reading else 0,
        dropped_turns=reading.dropped_turns if reading else 0,
        versions=versions(),
        hardware=hardware(),
    )
    return Record(head, beats, changes, finished, tail)


def _turned_down(event: Round, spell: Spell) -> tuple[str, ...]:
    if event.rejected is None:
        return ()
    return tuple(spell(id) for id in (event.rejected.id, *event.discarded))


class Recorder:
    """Collects a reply's events on the thread that writes it, for a record of it."""

    def __init__(self) -> None:
        self.reading: Reading | None = None
        self.rounds: list[Round] = []
        self._pieces: list[Piece] = []
        self._in_force: list[Settings | None] = []

    def see(self, event: Event) -> None:
        """One more event of the reply."""
        from specchat.worker import Reading, Step

        if isinstance(event, Reading):
            self.reading = event
        elif isinstance(event, Step):
            self.rounds.append(event.round)
            self._pieces += event.pieces
            self._in_force.append(event.settings)

    def record(self, pair: Pair, job: Job, done: Done) -> Record:
        """The reply as it is kept."""
        from specchat.chat.stream import text_of

        def spell(id: int) -> str:
            return text_of(pair.tokenizer, [id])

        return record_of(
            job, facts(pair), self.reading, self.rounds, self._pieces, self._in_force, done.finished, done.tail, spell
        )  # fmt: skip
