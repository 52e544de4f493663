"""The arguments of `distil`, apart from what runs it: `--help` should not have to import the models' libraries."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What belongs to making a draft alone; the target's arguments are the program's own."""
    parser.add_argument(
        "--tokens",
        type=int,
        default=2_000_000,
        help="tokens the target writes to learn from (default 2000000)",
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="time to train, after writing (default 60)"
    )
    parser.add_argument(
        "--kind", choices=["head", "layers"], default="head",
        help="head: one block over the target's hidden state; layers: the target's first two blocks as a standard "
        "checkpoint, which transformers loads as well (default head)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=None,
        help="the finished draft: a file, or a folder with --kind layers (default draft.safetensors, draft-layers)",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, default=None,
        help="folder for the texts and checkpoints; a run that was stopped goes on from it (default: in the cache)",
    )  # fmt: skip
    parser.add_argument(
        "--start", type=Path, default=None,
        help="a draft made for the same target before: training goes on from its weights (default: a fitted guess)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of texts and training (default 0)")
    parser.add_argument(
        "--slots", type=int, default=64, help="conversations written at once, as far as memory allows (default 64)"
    )  # fmt: skip
    parser.add_argument(
        "--vocabulary", type=int, default=8192, help="token ids the draft learns to propose (default 8192)"
    )
