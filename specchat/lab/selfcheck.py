"""Figures that a change must not spoil, measured on the loaded pair: `python -m specchat selfcheck`.

overhead: plain decoding through the engine against a bare loop of the same forwards.
cycles: stop and continue many times; threads, memory and speed must stay flat.
length: a conversation of 2,000 tokens; how fast its last 100 are decoded against its first 100.
precision: how far the target's law is from that of float32, see `precision`.
start: seconds until the page is served and until it can answer, in a process of its own.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from specchat.chat.conversation import Message
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Round
from specchat.decode.sampling import Sampling, draw, law_of
from specchat.lab import precision
from specchat.model.catalog import PairOptions
from specchat.pair import Pair, Progress, open_pair
from specchat.worker import Done, Job, Live, Step, Worker

Say = Callable[[str], None]

QUESTION = "Write a long story about a lighthouse keeper and the sea."


def run(what: Sequence[str], options: PairOptions, progress: Progress, say: Say) -> None:
    """The named checks in turn, each saying its figures."""
    if set(what) & {"overhead", "length"}:
        pair = open_pair(options, progress)
        if "overhead" in what:
            overhead(pair, say)
        if "length" in what:
            length(pair, say)
        del pair
    if "cycles" in what:
        worker = Worker(lambda _: open_pair(options, progress))
        if not worker.wait_ready(600):
            raise RuntimeError(worker.status().message)
        assert worker.pair is not None
        cycles(worker, worker.pair.default_drafter, say)
        worker.close()
    if "precision" in what:
        precision.run(options, progress, say)
    if "start" in what:
        start(options, say)


def overhead(pair: Pair, say: Say, steps: int = 120) -> dict[str, float]:
    """Median seconds of a plain round in the engine and of a bare step, taken alternately, and their ratio.

    The bare step is one forward and one draw from the same law; both decode the same prompt greedily on
    caches of their own over the same weights, so they do the same arithmetic on the same ids.
    """
    ids = list(pair.template.encode([Message("user", QUESTION)], "", pair.room(512)).ids)
    settings = Settings(0, Sampling(temperature=0.0), "", steps)
    engine = Engine(pair.target, {}, frozenset())
    bare = pair.twin()
    bare.read(ids[:-1])
    rounds = engine.generate(ids, lambda: settings)
    next(rounds)
    last, text = ids[-1], list(ids)
    engine_s, bare_s = [], []
    rng = engine._rng(settings.sampling)
    for event in rounds:
        if not isinstance(event, Round):
            break
        engine_s.append(event.seconds)
        began = time.perf_counter()
        last = int(draw(law_of(bare.forward([last]), text, settings.sampling), rng))
        bare_s.append(time.perf_counter() - began)
        text.append(last)
    result = {"engine_step_s": statistics.median(engine_s), "bare_step_s": statistics.median(bare_s)}
    result["ratio"] = statistics.median(a / b for a, b in zip(engine_s, bare_s, strict=True))
    say(
        f"overhead: a plain step in the engine {1e3 * result['engine_step_s']:.2f} ms, bare "
        f"{1e3 * result['bare_step_s']:.2f} ms, ratio {result['ratio']:.4f} (median of {len(engine_s)} pairs)"
    )
    return result


def cycles(
    worker: Worker, drafter: str, say: Say, count: int = 50, tokens: int = 6
) -> dict[str, list[float]]:
    """Starts a reply, stops it after a few tokens, continues in the next turn; every tenth cycle is reported."""
    process = psutil.Process()
    history: tuple[Message, ...] = ()
    rss: list[float] = []
    threads: list[float] = []
    speed: list[float] = []
    for cycle in range(count):
        live = Live(Settings(4, Sampling(seed=cycle), drafter, 256))
        asked = (*history[-4:], Message("user", f"{QUESTION} Part {cycle}."))
        handle = worker.submit(Job(asked, live))
        seen = 0
        done: Done | None = None
        for event in handle.events():
            if isinstance(event, Step):
                seen += len(event.round.tokens)
                if seen >= tokens:
                    handle.cancel()
            elif isinstance(event, Done):
                done = event
        assert done is not None
        history = (*asked, done.message)
        rss.append(process.memory_info().rss / 2**20)
        threads.append(float(threading.active_count()))
        stats = done.stats
        # Rounds, not tokens: how many tokens a round gives depends on the text, not on the engine's health.
        speed.append(stats.rounds / sum(stats.time_split().values()))
        if cycle % 10 == 9:
            say(
                f"cycles: {cycle + 1:3d} stops, {threads[-1]:.0f} threads, RSS {rss[-1]:.0f} MiB, "
                f"{statistics.median(speed[-10:]):.1f} rounds/s (median of the last 10)"
            )
    return {"threads": threads, "rss_mib": rss, "rounds_per_s": speed}


def length(pair: Pair, say: Say, total: int = 2000, part: int = 100) -> dict[str, float]:
    """Decodes up to `total` tokens of conversation in one reply (ends are ignored), plain and with γ = 4.

    With a draft the tokens a round gives change with the text, so the milliseconds of a round are told too.
    """
    ids = list(pair.template.encode([Message("user", QUESTION)], "", pair.capacity).ids)
    engine = Engine(pair.target, pair.engine.drafters, frozenset())
    result: dict[str, float] = {}
    for name, gamma in (("plain", 0), ("γ 4", 4)):
        settings = Settings(gamma, Sampling(seed=1), pair.default_drafter, total - len(ids))
        rounds = [r for r in engine.generate(ids, partial(_same, settings)) if isinstance(r, Round)]
        (first, first_ms), (last, last_ms) = _speed(rounds[1:], part), _speed(rounds[::-1], part)
        result[name], result[f"{name}, rounds"] = last / first, first_ms / last_ms
        say(
            f"length: {name}: first {part} tokens {first:.1f} tok/s, last {part} {last:.1f} tok/s, ratio "
            f"{last / first:.2f}; a round {first_ms:.1f} ms, then {last_ms:.1f} ms, ratio {first_ms / last_ms:.2f}"
        )
    return result


def _same(settings: Settings) -> Settings:
    return settings


def _speed(rounds: list[Round], tokens: int) -> tuple[float, float]:
    """tok/s over the first rounds that hold that many tokens, and their median milliseconds."""
    taken, count = [], 0
    for event in rounds:
        taken.append(event.seconds)
        count += len(event.tokens)
        if count >= tokens:
            break
    return count / sum(taken), 1e3 * statistics.median(taken)


def start(options: PairOptions, say: Say, limit_s: float = 120) -> dict[str, float]:
    """Starts app.py as a person would and times the page and readiness to answer from outside."""
    app = Path(__file__).parents[2] / "app.py"
    command = [sys.executable, str(app), "--target", options.target]
    if options.draft:
        command += ["--draft", options.draft]
    began = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=app.parent
    )
    result: dict[str, float] = {}
    try:
        assert child.stdout is not None
        for line in child.stdout:
            passed = time.perf_counter() - began
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            if address and "page_s" not in result:
                urllib.request.urlopen(address.group(), timeout=limit_s).read()
                result["page_s"] = time.perf_counter() - began
            if "Ready to answer" in line:
                result["ready_s"] = passed
            if len(result) == 2 or passed > limit_s:
                break
    finally:
        child.terminate()
        child.wait(30)
    if len(result) < 2:
        raise RuntimeError(
            f"The page did not come up within {limit_s:.0f} s; start app.py by hand to see why."
        )
    say(f"start: page served after {result['page_s']:.1f} s, able to answer after {result['ready_s']:.1f} s")
    return result
