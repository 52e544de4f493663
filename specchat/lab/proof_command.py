"""`python -m specchat proof`: both checks on the pair, the verdict in words; status 1 unless nothing differs."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from specchat.lab import suite
from specchat.lab.proof import prove
from specchat.lab.proof_plan import Plan, Progress
from specchat.lab.proof_words import TITLES, p_words, sentences, state_of
from specchat.lab.sampling_arguments import settings_of
from specchat.model.catalog import PairOptions
from specchat.pair import Progress as Told
from specchat.pair import open_pair

Say = Callable[[str], None]


def run(args: argparse.Namespace, options: PairOptions, progress: Told, say: Say) -> int:
    """The whole command. Raises ValueError with a sentence for arguments that do not go together."""
    if args.texts < 1 or args.seconds <= 0:
        raise ValueError("--texts must be 1 or more, and --seconds above 0.")
    settings_of(args, "chain")  # out-of-range values are refused before anything is loaded
    pair = open_pair(options, progress)
    if not pair.drafters:
        raise ValueError(f"This pair cannot speculate, so there is nothing to prove. {' '.join(pair.notes)}")
    own = [("your text", args.prompt)] if args.prompt else []
    prompts = [*own, *((p.id, p.text) for p in suite.sample(suite.load(), args.texts))][: args.texts]
    plan = Plan(
        settings_of(args, pair.default_drafter), tuple(prompts), args.check != "law", args.check != "greedy",
        first=args.first, seconds=args.seconds,
    )  # fmt: skip

    def put(news: object) -> None:
        if isinstance(news, Progress) and not news.sentence[0].isdigit():
            progress(news.sentence)

    proof = prove(pair, plan, lambda: False, put)
    state = state_of(proof)
    say("\n".join([TITLES[state], *sentences(proof)]))
    for test in proof.law.tests if proof.law is not None else ():
        say(
            f"  {test.name}: χ² {test.statistic:.1f} ({test.dof} degrees of freedom), p {p_words(test.p)}, distance "
            f"{test.distance:.3f}, noticeable {test.noticeable:.2f}"
        )
    return 0 if state == "same" else 1
