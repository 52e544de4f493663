"""`python -m specchat bench`: arguments → contestants → protocol → table, record and plot."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from specchat.chat.conversation import Message
from specchat.decode.settings import MAX_GAMMA, Settings
from specchat.lab import bench, report, suite
from specchat.lab.bench_arguments import FULL, QUICK, SAMPLE
from specchat.lab.bench_assistant import first_layers, from_folder
from specchat.lab.contestants import Contestant, HuggingFace, LlamaCpp, Ours
from specchat.model.catalog import PairOptions
from specchat.model.compact import CompactDecoder
from specchat.model.compact_weights import layer_bytes
from specchat.model.loading import load_model
from specchat.model.store import cache_root
from specchat.model.threads import in_use
from specchat.pair import Pair, Progress, open_pair

Say = Callable[[str], None]


def run(args: argparse.Namespace, options: PairOptions, progress: Progress, say: Say) -> None:
    """The whole benchmark; says the table. Raises ValueError with a sentence for arguments that do not go together."""
    if args.assistant and "hf" not in args.against:
        raise ValueError("--assistant is the draft of transformers' row; add --against hf.")
    size = {name: getattr(args, name) or (QUICK if args.quick else FULL)[name] for name in FULL}
    prompts = suite.sample(suite.load(), size["prompts"])
    protocol = bench.Protocol(tuple(prompts), size["tokens"], tuple(range(size["seeds"])))
    sample = protocol.sample(**SAMPLE)
    pair = open_pair(options, progress)
    ours, peers = _ours(args, pair), _peers(args, options, progress)
    out = args.out or cache_root(options.cache_dir) / "bench" / time.strftime("%Y%m%d-%H%M%S.jsonl")
    names = f"{pair.target_name} with {pair.draft_name}"
    facts: dict[str, object] = {
        "pair": names, "precision": pair.precision, "threads": in_use(), "tokens": protocol.tokens,
    }  # fmt: skip

    def encode(text: str) -> Sequence[int]:
        return pair.template.encode([Message("user", text)], "", pair.capacity - protocol.tokens).ids

    baseline = "transformers" if "hf" in args.against else "plain"
    say(f"{names}, {pair.precision}")
    results = []
    if peers and sample is not None:
        progress("Everybody on a sample, which is short enough for the slowest.")
        results = bench.run([*ours, *peers], sample, encode, out, facts, progress)
        _say_table("everybody, on a sample: ", results, sample, baseline, say)
        peers = []
    whole = bench.run([*ours, *peers], protocol, encode, out, facts, progress)
    _say_table("in full: " if results else "", whole, protocol, "plain" if results else baseline, say)
    _say_parts(whole, ours, say)
    _say_limit(pair, say)
    say(f"Record: {out}")
    if args.plot:
        report.plot(results or whole, baseline, args.plot)
        say(f"Plot: {args.plot}")


def _say_table(
    what: str, results: Sequence[bench.Result], protocol: bench.Protocol, baseline: str, say: Say
) -> None:
    size = f"{len(protocol.prompts)} prompts × {protocol.tokens} tokens × {len(protocol.seeds)} seeds"
    say(f"\n{what}{size}\n\n{report.table(results, baseline)}")


def _ours(args: argparse.Namespace, pair: Pair) -> list[Contestant]:
    found: list[Contestant] = [Ours(pair, 0)]
    if pair.drafters:
        gammas = _numbers(args.gammas)
        found += [Ours(pair, gamma) for gamma in gammas]
        if args.adaptive:
            most = max(gammas, default=Settings().gamma)
            found.append(Ours(pair, MAX_GAMMA, name="adaptive", adaptive=True))
            found.append(Ours(pair, most, name=f"guard, γ {most}", guard=True))
    return found


def _peers(args: argparse.Namespace, options: PairOptions, progress: Progress) -> list[Contestant]:
    """What ours are compared with: run on a sample, where the whole protocol would take hours."""
    found: list[Contestant] = []
    if args.plain_float32:
        plain = open_pair(replace(options, precision="float32", draft="none"), progress)
        found.append(Ours(plain, 0, name="plain, float32"))
    if "hf" in args.against:
        loaded = load_model(options.target, dtype="float32", cache_dir=options.cache_dir, progress=progress)
        module = loaded.module
        assistant = from_folder(args.assistant, loaded) if args.assistant else first_layers(module)
        found += [HuggingFace(module), HuggingFace(module, assistant)]
    if "llama.cpp" in args.against:
        if not args.gguf:
            raise ValueError("--against llama.cpp needs --gguf FILE: the file that it runs.")
        found.append(LlamaCpp(args.gguf, 4096, os.cpu_count() or 1))
    return found


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip() and int(part) > 0]
    except ValueError:
        raise ValueError(
            f"--gammas is {text!r}; it must be numbers separated by commas, like 2,4,6."
        ) from None


def _say_parts(results: Sequence[bench.Result], contestants: Sequence[Contestant], say: Say) -> None:
    """Where a round's time goes, for each of ours."""
    for contestant in contestants:
        split = report.time_split(results, contestant.name)
        if total := sum(split.values()):
            parts = ", ".join(
                f"{name[:-2]} {1e3 * spent:.2f} ms ({spent / total:.1%})" for name, spent in split.items()
            )
            say(f"\nA round of {contestant.name}: {1e3 * total:.1f} ms: {parts}")


def _say_limit(pair: Pair, say: Say) -> None:
    """The speed that memory allows: the bytes that a step must read over the measured bandwidth."""
    bandwidth = bench.read_bandwidth()
    read = pair.target.weight_bytes
    if isinstance(pair.target, CompactDecoder):
        # A packed head has a lookup table beside it, of which a step reads one row.
        weights = pair.target.weights
        read = min(read, sum(layer_bytes(layer) for layer in weights.layers) + weights.head.nbytes)
    step = read / bandwidth
    say(
        f"\nSpeed limit of a plain step: {read / 1e6:.0f} MB of weights at the measured "
        f"{bandwidth / 1e9:.1f} GB/s is {1e3 * step:.1f} ms, {1 / step:.0f} tok/s"
    )
