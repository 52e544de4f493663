"""The arguments of `doctor`, apart from what runs it: `--help` should not have to import the models' libraries."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What belongs to an examination alone."""
    parser.add_argument("prompt", nargs="?", help="the text to examine; default: a prompt of the suite")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
