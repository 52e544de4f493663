"""The arguments of `proof`, apart from what runs it: `--help` should not have to import the models' libraries."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What belongs to the proof alone."""
    group = parser.add_argument_group("the proof")
    group.add_argument("prompt", nargs="?", help="a text of your own, examined first")
    group.add_argument("--check", default="both", choices=["both", "greedy", "law"], help="default: both")
    group.add_argument("--seconds", type=float, default=60.0, help="time for drawing samples; default 60")
    group.add_argument("--first", type=int, default=2, choices=[1, 2, 3], help="tokens whose law is tested")
    group.add_argument("--texts", type=int, default=3, help="greedy texts; default 3")
