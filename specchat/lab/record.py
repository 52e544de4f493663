"""A reply as words and as data: the stats line under it, and the record that `--json` prints."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

import torch

from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats
from specchat.lab.words import REASONS, nothing_drafted
from specchat.pair import Pair
from specchat.worker import Done, Job

RECORD_VERSION = 1


def stats_line(finished: Finished, stats: Stats) -> str:
    """tokens · seconds · tok/s · time to first token · tokens/round · acceptance · reused/read · why it ended."""
    parts = [
        f"{stats.emitted} tokens",
        f"{finished.seconds:.1f} s",
        f"{stats.tok_per_s:.1f} tok/s",
        f"first token {stats.first_token_s:.2f} s",
        f"{stats.tokens_per_round:.2f} tokens/round",
        f"acceptance {stats.acceptance_rate:.0%}" if stats.drafted else nothing_drafted(stats),
    ]
    if stats.prefill is not None:
        parts.append(f"prompt {stats.prefill.reused} reused + {stats.prefill.read} read")
    return " · ".join([*parts, REASONS[finished.reason]])


def record(pair: Pair, job: Job, done: Done, rounds: Sequence[Round]) -> dict[str, object]:
    """Everything about one reply: what was asked, with which models, settings and software, and every round."""
    stats = done.stats
    return {
        "version": RECORD_VERSION,
        "pair": {"target": pair.target_name, "draft": pair.draft_name, "device": str(pair.target.device)},
        "versions": {name: version(name) for name in ("torch", "transformers", "gradio")},
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "settings": dataclasses.asdict(job.live.get()),
        "system": job.system,
        "messages": [{"role": message.role, "content": message.content} for message in job.messages],
        "reply": done.message.content,
        "finished": dataclasses.asdict(done.finished),
        "stats": {
            "rounds": stats.rounds,
            "tokens": stats.emitted,
            "tok_per_s": stats.tok_per_s,
            "time_to_first_token_s": stats.first_token_s,
            "tokens_per_round": stats.tokens_per_round,
            "mean_accepted_length": stats.mean_accepted_length,
            "acceptance_rate": stats.acceptance_rate,
            "accepted_length_histogram": stats.histogram(),
            "by_position": [
                dict(zip(("offered", "reached", "kept"), row, strict=True)) for row in stats.by_position()
            ],
            "target_forwards": stats.target_forwards,
            "draft_forwards": stats.draft_forwards,
            "seconds": stats.time_split(),
            "plain_step_s": pair.plain_step_s,
        },
        "rounds": [dataclasses.asdict(event) for event in rounds],
    }
