"""The sidebar's settings as arguments of every command that writes, and of the page."""

from __future__ import annotations

import argparse
import dataclasses

from specchat.decode.sampling import Sampling
from specchat.decode.settings import MAX_GAMMA, Settings

DEFAULT_GAMMA = 3
"""What a start begins with: the best of 1 to 6 for the built-in pair on 2 cores (see the README's table)."""

ADAPTIVE_GAMMA = 8
"""The upper bound that adaptive γ begins with."""


def add_sampling_arguments(parser: argparse.ArgumentParser, chosen: bool = True) -> None:
    """The sliders of the page, as arguments; defaults are the engine's. chosen: γ may be left to measurements."""
    group = parser.add_argument_group("sampling (applies to target and draft alike)")
    defaults, sampling = Settings(), Sampling()
    group.add_argument(
        "--gamma", "--speculative-length", type=int, default=None if chosen else DEFAULT_GAMMA,
        help=f"tokens proposed a round, 0 (off) to {MAX_GAMMA}; default {DEFAULT_GAMMA}"
        + (f", or with --adaptive, where it is the most there may be, {ADAPTIVE_GAMMA}" if chosen else ""),
    )  # fmt: skip
    if chosen:
        _add_choosing_arguments(group, defaults)
    group.add_argument(
        "--drafter", default=None, choices=["chain", "model", "ngram"], help="which drafter proposes"
    )
    group.add_argument("--max-new-tokens", type=int, default=defaults.max_new_tokens)
    for field in dataclasses.fields(Sampling):
        default = getattr(sampling, field.name)
        kind = int if field.name in ("top_k", "seed") else float
        group.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=default)


def _add_choosing_arguments(group: argparse._ArgumentGroup, defaults: Settings) -> None:
    """What makes a draft shorter than γ."""
    group.add_argument(
        "--adaptive", action="store_true",
        help="choose γ from what is measured; a seed then no longer repeats the text",
    )  # fmt: skip
    group.add_argument(
        "--guard", action="store_true",
        help="let speculation rest while plain decoding is measured to be faster; the same goes for the seed",
    )  # fmt: skip
    group.add_argument(
        "--confidence", type=float, default=defaults.confidence,
        help="the draft stops where its likeliest next token has less than this probability; 0 (default) is off",
    )  # fmt: skip


def settings_of(args: argparse.Namespace, drafter: str) -> Settings:
    """The arguments as engine settings; ValueError says which is out of range."""
    sampling = Sampling(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Sampling)})
    gamma = args.gamma if args.gamma is not None else ADAPTIVE_GAMMA if args.adaptive else DEFAULT_GAMMA
    return Settings(
        gamma, sampling, args.drafter or drafter, args.max_new_tokens,
        confidence=args.confidence, adaptive=args.adaptive, guard=args.guard,
    )  # fmt: skip
