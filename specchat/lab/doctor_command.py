"""`python -m specchat doctor`: one examination, told in words or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from specchat.chat.conversation import Message
from specchat.lab import suite
from specchat.lab.doctor_chart import ratio
from specchat.lab.doctor_measure import Examination, Subject, diagnose, left_out
from specchat.lab.sampling_arguments import settings_of
from specchat.lab.words import percent
from specchat.model.catalog import PairOptions
from specchat.pair import Progress, open_pair

Say = Callable[[str], None]


def run(args: argparse.Namespace, options: PairOptions, progress: Progress, say: Say) -> int:
    """The whole command. Raises ValueError with a sentence for what cannot be examined."""
    settings_of(args, "chain")  # out-of-range values are refused before anything is loaded
    pair = open_pair(options, progress)
    sample = suite.load()[0]
    name, text = ("your text", args.prompt) if args.prompt else (f"{sample.id}, of the suite", sample.text)
    subject = Subject(name, (Message("user", text),))
    settings = settings_of(args, pair.default_drafter)
    found = diagnose(pair, subject, settings, lambda: False, lambda said: progress(str(said)))
    assert found is not None
    say(json.dumps(data(found), indent=1) if args.json else told(found))
    return 0


def told(found: Examination) -> str:
    """Every finding: title, sentence, number against threshold, what to do."""
    chart, lines = found.chart, []
    lines.append(
        f"{found.subject}: {1 / chart.now_s:.1f} tok/s, {ratio(chart.gain)} plain decoding{left_out(found.settings)}"
    )
    for place, one in enumerate(found.findings, start=1):
        cost = "" if one.estimate or not one.cost else f" (costs {percent(one.cost)} of the time)"
        lines += [
            f"\n{place}. {one.title}{cost}", f"   {one.sentence}",
            f"   measured: {one.measured}; compared with: {one.threshold}", f"   {one.remedy.words}",
        ]  # fmt: skip
    return "\n".join(lines)


def data(found: Examination) -> dict[str, object]:
    """The same as plain data. cost: null where it is only a rule of thumb."""
    chart = found.chart
    return {
        "subject": found.subject,
        "gain": chart.gain,
        "plain_s": chart.plain_s,
        "token_s": chart.now_s,
        "findings": [
            {
                "cause": one.cause,
                "title": one.title,
                "sentence": one.sentence,
                "measured": one.measured,
                "threshold": one.threshold,
                "cost": None if one.estimate else one.cost,
                "remedy": one.remedy.words,
                "change": dict(one.remedy.change),
            }
            for one in found.findings
        ],
    }
