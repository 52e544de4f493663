"""`python -m specchat tune`: arguments → plan → run → prediction, tables, recommendation, files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specchat.decode.sampling import Sampling
from specchat.lab import tune_report, tune_start
from specchat.lab.tune import Outcome
from specchat.lab.tune_arguments import FULL, QUICK, QUICK_S
from specchat.lab.tune_plan import Plan, prompts_from
from specchat.lab.tune_table import (
    cache_table,
    category_table,
    markdown,
    overhead_words,
    prediction_table,
    prediction_words,
    stage_table,
)
from specchat.lab.tune_words import progress_words
from specchat.model.catalog import PairOptions
from specchat.pair import Progress, open_pair

Say = Callable[[str], None]


def plan_of(args: argparse.Namespace) -> Plan:
    """The arguments as a plan; ValueError says what is wrong, before anything is loaded."""
    size = QUICK if args.quick else FULL
    given = args.max_new_tokens if args.tokens is None else args.tokens
    count = size["seeds"] if args.seeds is None else args.seeds
    if args.seeds is not None and count < 1:
        raise ValueError(f"--seeds is {args.seeds}; it must be 1 or more.")
    sampling = Sampling(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Sampling)})
    first = sampling.seed or 0
    return Plan(
        prompts=prompts_from(args.prompts, args.quick),
        tokens=size["tokens"] if given is None else given,
        seeds=tuple(range(first, first + count)),
        sampling=dataclasses.replace(sampling, seed=None),
        drafter=args.drafter or "",
        gamma=args.gamma,
        gammas=() if args.gammas is None else _numbers(args.gammas),
        exhaustive=args.exhaustive,
        budget_s=QUICK_S if args.quick else None,
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise ValueError(f"--gammas is {text!r}; it must be numbers separated by commas, like 2,4,6.")
    return found


def run(args: argparse.Namespace, options: PairOptions, progress: Progress, say: Say) -> int:
    """The whole command; the exit status is 0 for a finished run, 130 for one that was stopped."""
    plan = plan_of(args)
    for path in filter(None, (args.html, args.json if args.json != "-" else None)):
        if not Path(path).resolve().parent.is_dir():
            raise ValueError(
                f"There is no folder {Path(path).resolve().parent} to write {Path(path).name} into."
            )
    record = args.record or tune_start.new_record(tune_start.folder(options.cache_dir))
    pair = open_pair(options, progress)
    with _stoppable() as stopped:
        outcome = tune_start.tune(pair, plan, record, stopped.is_set, _Teller(progress))
    if args.json == "-":
        say(json.dumps(tune_start.data(outcome), indent=1))
    else:
        tell(outcome, say)
        if args.json:
            Path(args.json).write_text(
                json.dumps(tune_start.data(outcome), indent=1) + "\n", encoding="utf-8"
            )
            say(f"JSON: {args.json}")
    if args.html:
        args.html.write_text(tune_report.page(outcome), encoding="utf-8")
        progress(f"Report: {args.html}")
    progress(f"Record: {record}")
    if not outcome.complete:
        progress(f"Stopped. The same command with --record {record} goes on from here.")
    return 0 if outcome.complete else 130


def tell(outcome: Outcome, say: Say) -> None:
    """The run in words and tables; of a run that was stopped, what there is."""
    plan, names = outcome.plan, outcome.identity
    said = f"{names['target']} with {names['draft'] or 'no draft'}, {names['precision']}, {names['device']}"
    say(f"\n{said}; {len(plan.prompts)} prompts × {len(plan.seeds)} seeds × {plan.tokens} tokens\n")
    for title, body in (
        ("Predicted", prediction_words(outcome)),
        ("Stages", markdown(stage_table(outcome))),
        ("By category", markdown(category_table(outcome))),
        ("Predicted and measured", markdown(prediction_table(outcome))),
        ("Overhead", overhead_words(outcome)),
        ("Prefix cache", markdown(cache_table(outcome.turns))),
    ):
        if body:
            say(f"{title}\n{body}\n")
    for remark in outcome.remarks:
        say(remark)
    if outcome.advice is not None:
        say(f"Recommended: {outcome.advice.headline}\n{outcome.advice.reason}")
        for remark in outcome.advice.remarks:
            say(remark)


class _Teller:
    """Progress lines with the time left, and the prediction as soon as there is one."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.predicted = False

    def __call__(self, outcome: Outcome) -> None:
        if outcome.prediction is not None and not self.predicted:
            self.predicted = True
            self.progress(prediction_words(outcome))
        self.progress(progress_words(outcome))


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Ctrl-C ends the run within a round, with what there is; a second one ends the program."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
