"""The benchmark's arguments, apart from what runs it: `--help` should not have to import the models' libraries."""

from __future__ import annotations

import argparse
from pathlib import Path

from specchat.decode.settings import MAX_GAMMA

QUICK = {"prompts": 6, "tokens": 96, "seeds": 1}
FULL = {"prompts": 30, "tokens": 512, "seeds": 3}
SAMPLE = {"prompts": 6, "tokens": 192}
"""What others, and float32, are run on at most, together with ours."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What belongs to the benchmark alone; the pair's arguments are the program's own."""
    parser.add_argument(
        "--quick", action="store_true",
        help=f"a short form of the protocol: {QUICK}. In the long one, what this program is compared with runs on a "
        f"sample only, {SAMPLE['prompts']} prompts × {SAMPLE['tokens']} tokens, in turn with all of ours",
    )  # fmt: skip
    for name, value in FULL.items():
        parser.add_argument(
            f"--{name}", type=int, default=None, help=f"default {value}, or {QUICK[name]} with --quick"
        )
    parser.add_argument("--gammas", default="2,4,6", help="speculation lengths to run beside plain decoding")
    parser.add_argument(
        "--adaptive", action="store_true",
        help=f"also adaptive γ (up to {MAX_GAMMA}), and the largest of --gammas with the never-slower guard",
    )  # fmt: skip
    parser.add_argument(
        "--plain-float32", action="store_true", help="also plain decoding with float32 weights"
    )
    parser.add_argument(
        "--against", action="append", default=[], choices=["hf", "llama.cpp"],
        help="transformers' plain and assisted generation, llama.cpp; may be given twice",
    )  # fmt: skip
    parser.add_argument(
        "--assistant", type=Path, default=None, metavar="FOLDER",
        help="checkpoint that assists transformers' generate, as distil --kind layers makes one "
        "(default: the target's first two layers, untrained)",
    )  # fmt: skip
    parser.add_argument("--gguf", default=None, help="the GGUF file that llama.cpp runs")
    parser.add_argument(
        "--out", type=Path, default=None, help="record (JSON lines); an unfinished one is continued"
    )
    parser.add_argument("--plot", type=Path, default=None, help="also draw the result into this SVG file")
