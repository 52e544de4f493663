"""The benchmark: contestants take turns on the same prompts; every run is a line in a file, so a stop loses nothing.

Protocol: 30 prompts (code, summaries with their texts, questions), temperature 0.6, top-k 20, 512 tokens with ends
ignored, three seeds, one stream, clock from the first token to the last, a warm-up before anything counts.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from specchat.lab.suite import Prompt
from specchat.model.threads import in_use

if TYPE_CHECKING:
    from specchat.lab.contestants import Contestant, Run

Say = Callable[[str], None]
Encode = Callable[[str], Sequence[int]]


ALL, SAMPLE = "all", "sample"
"""Parts of a record."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """What is run. part: its name in a record that holds several."""

    prompts: tuple[Prompt, ...]
    tokens: int
    seeds: tuple[int, ...]
    part: str = ALL

    def sample(self, prompts: int, tokens: int) -> Protocol | None:
        """A part of it for those who are too slow for all: the first prompts, one seed. None if that is all of it."""
        if len(self.prompts) <= prompts and self.tokens <= tokens and len(self.seeds) <= 1:
            return None
        return Protocol(self.prompts[:prompts], min(tokens, self.tokens), self.seeds[:1], SAMPLE)

    def units(self) -> Iterator[tuple[Prompt, int]]:
        """Every (prompt, seed), categories mixed, so that a run cut short has seen all of them."""
        for seed in self.seeds:
            for prompt in self.prompts:
                yield prompt, seed


@dataclass(frozen=True, slots=True)
class Result:
    """One contestant on one prompt with one seed."""

    contestant: str
    prompt: str
    category: str
    seed: int
    tokens: int
    seconds: float
    counts: dict[str, float]
    part: str = ALL

    @property
    def tok_per_s(self) -> float:
        """Decoding speed."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def environment() -> dict[str, object]:
    """Hardware and versions, for the head of a record."""
    return {
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate")},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": in_use(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def run(
    contestants: Sequence[Contestant],
    protocol: Protocol,
    encode: Encode,
    record: Path,
    facts: dict[str, object],
    say: Say,
) -> list[Result]:
    """Runs what the record does not hold yet; returns what it holds of this part then.

    Within a unit the contestants take turns, and who begins rotates, so that a drift of the machine's speed
    meets all alike. Raises ValueError when the record was made with another protocol.
    """
    head = {"bench": 1, "tokens": protocol.tokens, "environment": environment(), **facts}
    results = [r for r in _resume(record, head) if r.part == protocol.part]
    done = {(r.contestant, r.prompt, r.seed) for r in results}
    todo = [
        (place, prompt, seed)
        for place, (prompt, seed) in enumerate(protocol.units())
        if any((c.name, prompt.id, seed) not in done for c in contestants)
    ]
    if todo:
        for contestant in contestants:
            contestant.run(encode("Hello"), 8, 0)
    began = time.monotonic()
    with record.open("a", encoding="utf-8") as file:
        for count, (place, prompt, seed) in enumerate(todo, start=1):
            ids = encode(prompt.text)
            turn = place % len(contestants)
            for contestant in [*contestants[turn:], *contestants[:turn]]:
                if (contestant.name, prompt.id, seed) in done:
                    continue
                result = _result(
                    contestant, prompt, seed, protocol.part, contestant.run(ids, protocol.tokens, seed)
                )
                results.append(result)
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()
            left = (time.monotonic() - began) / count * (len(todo) - count)
            say(f"{count}/{len(todo)} units, {left / 60:.0f} min left")
    return results


def _result(contestant: Contestant, prompt: Prompt, seed: int, part: str, run: Run) -> Result:
    counts = {**run.counts, "rss": float(psutil.Process().memory_info().rss)}
    return Result(contestant.name, prompt.id, prompt.category, seed, run.tokens, run.seconds, counts, part)


def _resume(record: Path, head: dict[str, object]) -> list[Result]:
    """Starts a record, or reads one that was begun; a last line cut off by a crash is dropped."""
    if not record.exists() or record.stat().st_size == 0:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(head) + "\n", encoding="utf-8")
        return []
    found, results = read(record)
    if (found.get("tokens"), found.get("pair")) != (head["tokens"], head.get("pair")):
        raise ValueError(f"{record} was made with another pair or token count; choose another --out.")
    lines = [json.dumps(found), *(json.dumps(asdict(result)) for result in results)]
    record.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return results


def read(record: Path) -> tuple[dict[str, object], list[Result]]:
    """Head and results of a record; ValueError with a sentence for a file that is none."""
    lines = record.read_text(encoding="utf-8").splitlines()
    try:
        head = json.loads(lines[0])
        if head.get("bench") != 1:
            raise ValueError("no benchmark head")
    except (ValueError, IndexError, AttributeError) as problem:
        raise ValueError(f"{record} is not a benchmark record ({problem}).") from problem
    results = []
    for line in lines[1:]:
        try:
            results.append(Result(**json.loads(line)))
        except (ValueError, TypeError):
            break  # cut off by a crash: what follows cannot be trusted
    return head, results


def read_bandwidth(size: int = 1 << 28, repeats: int = 7) -> float:
    """Bytes a second that torch reads from memory here: the sum of a buffer far larger than the caches."""
    buffer = torch.ones(size // 4)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - began)
    return size / best
