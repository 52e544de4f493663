"""How far the target, as its matrices are multiplied here, is from the same target in float32.

The prompts of the suite are read, and their last ids fed as decoding feeds them: alone, and in blocks of five.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specchat.chat.conversation import Message
from specchat.lab import suite
from specchat.model.catalog import PairOptions
from specchat.pair import Pair, Progress, open_pair

ALONE, BLOCKS, BLOCK = 6, 2, 5
"""Of each prompt's last ids: so many alone, then so many blocks of so many."""

UNBOUNDED = 1 << 30
"""Room for a prompt of any length: of one that is longer than the context the end is read."""


def run(options: PairOptions, progress: Progress, say: Callable[[str], None], prompts: int = 30) -> float:
    """Mean KL divergence in nats, float32 against the precision asked for, over the suite's prompts."""
    bare = replace(options, draft="none")
    pair = open_pair(bare, progress)
    texts = [
        list(pair.template.encode([Message("user", prompt.text)], "", UNBOUNDED).ids)[-pair.capacity :]
        for prompt in suite.sample(suite.load(), prompts)
    ]
    found = [laws(pair, text) for text in texts]
    precision = pair.precision
    del pair
    exact = open_pair(replace(bare, precision="float32"), progress)
    each = [divergence(laws(exact, text), law) for text, law in zip(texts, found, strict=True)]
    mean = statistics.fmean(each)
    say(
        f"precision: {precision} to {exact.precision}: KL {mean:.2g} nats, at most {max(each):.2g} for one of "
        f"{len(each)} prompts ({ALONE + BLOCKS * BLOCK} places each)"
    )
    return mean


@torch.inference_mode()
def laws(pair: Pair, ids: Sequence[int]) -> Tensor:
    """Logits [places, V] behind the last ids of a text, float32 on the CPU."""
    target, fed = pair.target, ALONE + BLOCKS * BLOCK
    target.reset()
    target.read(ids[:-fed])
    tail = list(ids[-fed:])
    steps = [tail[i : i + 1] for i in range(ALONE)] + [
        tail[at : at + BLOCK] for at in range(ALONE, fed, BLOCK)
    ]
    return torch.cat([target.forward(step).float().cpu() for step in steps])


def divergence(p: Tensor, q: Tensor) -> float:
    """Mean KL(p ‖ q) in nats over rows of logits."""
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    # An entry that a head lacks is -inf in both, and no part of the sum.
    return float((p.exp() * (p - q).nan_to_num(0.0)).sum(-1).mean().clamp(min=0.0))
