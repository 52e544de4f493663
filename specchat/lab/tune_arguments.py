"""The arguments of `tune`, apart from what runs it: `--help` should not have to import the models' libraries."""

from __future__ import annotations

import argparse
from pathlib import Path

QUICK = {"prompts": 6, "tokens": 48, "seeds": 1}
QUICK_S = 240.0
"""Seconds that a quick run is meant to take at most: a slow machine runs fewer of the prompts."""
FULL = {"prompts": 12, "tokens": 192, "seeds": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What belongs to tuning alone; call it after the pair's and the sampling's arguments, which it shares."""
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--quick",
        action="store_true",
        help=f"at most about {QUICK_S / 60:.0f} minutes instead of an hour: {QUICK}, fewer prompts where they would take longer",
    )
    group.add_argument(
        "--prompts", default=None, metavar="N|FILE",
        help=f"how many of the built-in prompts (default {FULL['prompts']}, {QUICK['prompts']} with --quick), or a "
        "file of one's own: text, one prompt a line or separated by blank lines; or .json as assets/prompts.json",
    )  # fmt: skip
    for name, what in (("tokens", "tokens of each reply, ends ignored"), ("seeds", "seeds for each prompt")):
        group.add_argument(
            f"--{name}",
            type=int,
            default=None,
            help=f"{what} (default {FULL[name]}, {QUICK[name]} with --quick)",
        )
    group.add_argument("--gammas", default=None, help="sweep these alone, for example 2,4,6")
    group.add_argument(
        "--exhaustive", action="store_true",
        help="measure every γ from 1 to 8, and say how near the guided sweep would have come",
    )  # fmt: skip
    group.add_argument("--json", default=None, metavar="FILE|-", help="write the result as JSON")
    group.add_argument(
        "--html", type=Path, default=None, help="write a report: one HTML file, nothing else needed"
    )
    group.add_argument(
        "--record", type=Path, default=None, help="record (JSON lines); an unfinished one is continued"
    )
    # Both are what tuning finds or sets itself: only a value that somebody gave counts.
    parser.set_defaults(gamma=None, max_new_tokens=None)
