"""The same engine and settings from a terminal: `python -m specchat generate "prompt"`.

Also holds the arguments that the page (app.py) and every command share.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO, cast, get_args

from specchat.lab.bench_arguments import add_arguments as add_bench_arguments
from specchat.lab.distil.arguments import add_arguments as add_distil_arguments
from specchat.lab.doctor_arguments import add_arguments as add_doctor_arguments
from specchat.lab.proof_arguments import add_arguments as add_proof_arguments
from specchat.lab.replay_command import add_arguments as add_replay_arguments
from specchat.lab.sampling_arguments import add_sampling_arguments as add_sampling_arguments
from specchat.lab.sampling_arguments import settings_of as settings_of
from specchat.lab.tune_arguments import add_arguments as add_tune_arguments
from specchat.model.catalog import PairOptions
from specchat.model.linear import Precision

Progress = Callable[[str], None]

CHECKS = ("overhead", "cycles", "length", "precision", "start")


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Which models, where, how precise."""
    pair = parser.add_argument_group("the pair")
    pair.add_argument(
        "--target",
        "--model",
        default="builtin",
        help="hub id, local folder or GGUF file; default: the built-in model",
    )
    pair.add_argument(
        "--draft",
        default=None,
        help="hub id, folder, GGUF file, .safetensors file made by distil, or: shallow (the target's first layers), "
        "self, ngram, none; default: the draft trained for the built-in target, ngram for any other",
    )
    pair.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps …")
    pair.add_argument(
        "--precision",
        default="auto",
        help="auto (float16 weights on a CPU, bfloat16 on a GPU), float32, float16, bfloat16, int8",
    )
    pair.add_argument(
        "--threads",
        type=int,
        default=None,
        help="CPU threads (default: every core or all but one, by measurement)",
    )
    pair.add_argument(
        "--context", type=int, default=None, help="most tokens of a conversation (default: up to 8192)"
    )
    pair.add_argument(
        "--cache-dir",
        default=None,
        help="where converted models lie (default: $SPECCHAT_CACHE or the user's cache)",
    )
    pair.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="CUDA only: record each step once and replay it (untimed yet)",
    )


def options_of(args: argparse.Namespace) -> PairOptions:
    """The arguments of `cli.add_pair_arguments`; ValueError says what is wrong."""
    if args.precision not in get_args(Precision):
        raise ValueError(
            f"--precision is {args.precision}; it must be one of {', '.join(get_args(Precision))}."
        )
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"--threads is {args.threads}; it must be 1 or more.")
    if args.context is not None and args.context < 16:
        raise ValueError(f"--context is {args.context}; it must be 16 or more.")
    return PairOptions(
        args.target,
        args.draft or "",
        args.device,
        cast(Precision, args.precision),
        args.threads,
        args.context,
        args.cache_dir,
        args.cuda_graphs,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. Anything expected to go wrong is one sentence on stderr."""
    parser = argparse.ArgumentParser(
        prog="specchat", description=__doc__.splitlines()[0] if __doc__ else None
    )
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="stream one reply and print its statistics")
    generate.add_argument("prompt", nargs="?", help="the message; - or nothing reads standard input")
    generate.add_argument("--system", default="", help="the system prompt (empty: the template's own)")
    generate.add_argument(
        "--stop", action="append", default=[], help="a stop string; may be given several times"
    )
    generate.add_argument(
        "--json", action="store_true", help="print the whole record as JSON instead of text"
    )
    generate.add_argument(
        "--record", type=Path, metavar="FILE", help="save the reply for `replay` and the page"
    )
    add_pair_arguments(generate)
    add_sampling_arguments(generate)
    generate.set_defaults(run=_generate)
    selfcheck = commands.add_parser("selfcheck", help="measure the figures that a change must not spoil")
    selfcheck.add_argument("what", nargs="*", choices=[*CHECKS, []], help="default: all")
    add_pair_arguments(selfcheck)
    selfcheck.set_defaults(run=_selfcheck)
    benchmark = commands.add_parser(
        "bench", help="measure speed by a fixed protocol, also against other programs"
    )
    add_bench_arguments(benchmark)
    add_pair_arguments(benchmark)
    benchmark.set_defaults(run=_bench)
    distil = commands.add_parser(
        "distil", help="make a small draft for a target, from texts that the target writes itself"
    )
    add_distil_arguments(distil)
    add_pair_arguments(distil)
    distil.set_defaults(run=_distil)
    tune = commands.add_parser(
        "tune", help="find the settings that are fastest here, stage by stage, and say why"
    )
    add_pair_arguments(tune)
    add_sampling_arguments(tune, chosen=False)
    add_tune_arguments(tune)
    tune.set_defaults(run=_tune)
    doctor = commands.add_parser("doctor", help="say why speculation is not faster here, and what helps")
    add_doctor_arguments(doctor)
    add_pair_arguments(doctor)
    add_sampling_arguments(doctor)
    doctor.set_defaults(run=_doctor)
    proof = commands.add_parser("proof", help="test that speculation does not change what is written")
    add_proof_arguments(proof)
    add_pair_arguments(proof)
    add_sampling_arguments(proof)
    proof.set_defaults(run=_proof)
    replay = commands.add_parser("replay", help="play a saved reply again; export and compare records")
    add_replay_arguments(replay)
    replay.set_defaults(run=_replay)
    args = parser.parse_args(argv)
    args.argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A pipe may be of an encoding without γ or an emoji: a mark in their place, not the end of the reply.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone: not an error, and nothing may be flushed to it any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, RuntimeError) as problem:
        print(f"specchat: {problem}", file=sys.stderr)
        return 1


def _generate(args: argparse.Namespace) -> int:
    from specchat.chat.conversation import Message
    from specchat.lab.record import Recorder, record, stats_line
    from specchat.lab.record_write import write
    from specchat.pair import open_pair
    from specchat.reply import reply
    from specchat.worker import Event, Job, Live, Step
    from specchat.yardstick import EVERY

    if args.record and not args.record.absolute().parent.is_dir():
        raise ValueError(f"--record {args.record}: there is no such folder.")

    prompt = sys.stdin.read() if args.prompt in (None, "-") else args.prompt
    settings_of(args, "chain")  # out-of-range values are refused before anything is loaded
    pair = open_pair(options_of(args), progress_on(sys.stderr))
    live = Live(settings_of(args, pair.default_drafter))
    recorder = Recorder()
    stopped = threading.Event()
    gone: list[BrokenPipeError] = []

    def put(event: Event) -> None:
        recorder.see(event)
        if isinstance(event, Step) and not args.json and not gone:
            try:
                print("".join(piece.text for piece in event.pieces), end="", flush=True)
            except BrokenPipeError as problem:
                gone.append(problem)
                stopped.set()

    job = Job((Message("user", prompt),), live, args.system, tuple(args.stop), EVERY)
    before = signal.signal(signal.SIGINT, lambda *_: _stop(stopped))
    try:
        done = reply(pair, job, stopped.is_set, put)
    finally:
        signal.signal(signal.SIGINT, before)
    if args.record:
        write(args.record, [recorder.record(pair, job, done)])
    if gone:
        raise gone[0]
    if args.json:
        json.dump(record(pair, job, done, recorder.rounds), sys.stdout, indent=1)
        print()
    else:
        print(done.tail)
        print(f"\n{stats_line(done.finished, done.stats)}", file=sys.stderr)
    if done.finished.notice:
        print(f"specchat: {done.finished.notice}", file=sys.stderr)
    return 1 if done.finished.reason == "error" else 0


def _stop(stopped: threading.Event) -> None:
    """Ctrl-C ends the reply within a round, with its statistics; a second one ends the program."""
    if stopped.is_set():
        raise KeyboardInterrupt
    stopped.set()


def _replay(args: argparse.Namespace) -> int:
    from specchat.lab import replay_command

    return replay_command.run(args)


def _selfcheck(args: argparse.Namespace) -> int:
    from specchat.lab import selfcheck

    selfcheck.run(args.what or CHECKS, options_of(args), progress_on(sys.stderr), print)
    return 0


def _bench(args: argparse.Namespace) -> int:
    from specchat.lab import bench_command

    bench_command.run(args, options_of(args), progress_on(sys.stderr), print)
    return 0


def _distil(args: argparse.Namespace) -> int:
    from specchat.lab.distil import command

    command.run(args, options_of(args), progress_on(sys.stderr), print)
    return 0


def _tune(args: argparse.Namespace) -> int:
    from specchat.lab import tune_command

    return tune_command.run(args, options_of(args), progress_on(sys.stderr), print)


def _doctor(args: argparse.Namespace) -> int:
    from specchat.lab import doctor_command

    return doctor_command.run(args, options_of(args), progress_on(sys.stderr), print)


def _proof(args: argparse.Namespace) -> int:
    from specchat.lab import proof_command

    return proof_command.run(args, options_of(args), progress_on(sys.stderr), print)


def tee(*listeners: Progress) -> Progress:
    """One progress callback that tells several."""

    def progress(message: str) -> None:
        for listener in listeners:
            listener(message)

    return progress


def progress_on(stream: TextIO) -> Progress:
    """Progress sentences on a terminal: each on its line, repeated ones not repeated."""
    last = [""]

    def progress(message: str) -> None:
        if message != last[0]:
            last[0] = message
            print(message, file=stream, flush=True)

    return progress
