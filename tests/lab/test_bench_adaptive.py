"""Adaptive γ and the guard as contestants of the benchmark."""

from __future__ import annotations

import argparse

from specchat.lab import bench_command
from specchat.lab.bench_arguments import add_arguments
from specchat.lab.contestants import Ours
from tests.worker.jobs import pair_of


def test_adaptive_adds_both_and_each_writes_what_was_asked_for() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    pair = pair_of()
    names: dict[str, Ours] = {}
    for arguments in ([], ["--adaptive"]):
        args = parser.parse_args(["--gammas", "2,4", *arguments])
        found = bench_command._ours(args, pair)
        names = {contestant.name: contestant for contestant in found if isinstance(contestant, Ours)}
        added = {"adaptive", "guard, γ 4"} if arguments else set()
        assert set(names) == {"plain", "γ 2", "γ 4"} | added
    for name in ("adaptive", "guard, γ 4"):
        run = names[name].run([5, 6, 7], 40, 0)
        assert run.counts["emitted"] == 40 and run.tok_per_s > 0
        assert names[name].engine.pilots, "nothing was chosen by measurements"
    assert names["γ 4"].run([5, 6, 7], 10, 0).tokens > 0 and not names["γ 4"].engine.pilots
