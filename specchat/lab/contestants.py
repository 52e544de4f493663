"""Who runs in a benchmark: the engine with some settings, and what people use today.

Each contestant continues the same prompt ids by exactly `tokens` ids with the same sampling, ends ignored, one
stream; the clock runs from the first token to the last, so that reading the prompt is nobody's advantage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging as transformers_logging

from specchat.decode.engine import Engine, Settings
from specchat.decode.sampling import Sampling
from specchat.lab.bench_assistant import Assistant
from specchat.lab.measure import measure
from specchat.pair import Pair


@dataclass(frozen=True, slots=True)
class Run:
    """One measured continuation. seconds: from the first token to the last; tokens: those after the first round."""

    tokens: int
    seconds: float
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def tok_per_s(self) -> float:
        """Decoding speed."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


class Contestant(Protocol):
    """One column of the table."""

    name: str

    def run(self, ids: Sequence[int], tokens: int, seed: int) -> Run:
        """Continues ids by `tokens`, from cold caches."""
        ...


class Ours:
    """The engine at one γ and drafter; γ = 0 is plain decoding. With adaptive, γ is the most there may be."""

    def __init__(
        self, pair: Pair, gamma: int, drafter: str = "", name: str = "", sampling: Sampling | None = None,
        adaptive: bool = False, guard: bool = False,
    ) -> None:  # fmt: skip
        self.pair = pair
        self.gamma = gamma
        self.drafter = drafter or pair.default_drafter
        self.name = name or (f"γ {gamma}" if gamma else "plain")
        self.sampling = sampling or Sampling()
        self.adaptive, self.guard = adaptive, guard
        self.engine = Engine(pair.target, pair.engine.drafters, frozenset())

    def run(self, ids: Sequence[int], tokens: int, seed: int) -> Run:
        """See Contestant. Raises RuntimeError when the engine ends with an error."""
        base = self.sampling
        sampling = Sampling(base.temperature, base.top_k, base.top_p, base.min_p, seed=seed)
        settings = Settings(
            self.gamma, sampling, self.drafter, tokens, adaptive=self.adaptive, guard=self.guard
        )
        stats = measure(self.pair, ids, settings, engine=self.engine).stats
        counts = {
            "emitted": stats.emitted,
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "target_forwards": stats.target_forwards,
            "draft_forwards": stats.draft_forwards,
            **{f"{part}_s": spent for part, spent in stats.time_split().items()},
        }
        if stats.offered:
            counts["first_offered"], counts["first_kept"] = stats.offered[0], stats.kept[0]
        return Run(stats.emitted - stats.first_tokens, stats.elapsed_s - stats.first_token_s, counts)


class _Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when tokens arrive; the first call is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())
        self.counts.append(value.numel())

    def end(self) -> None:
        pass


class HuggingFace:
    """transformers' own generate on the same weights; with a draft, its assisted generation."""

    def __init__(
        self, model: PreTrainedModel, draft: Assistant | None = None, sampling: Sampling | None = None
    ) -> None:
        self.model = model
        self.draft = None if draft is None else draft.module
        self.sampling = sampling or Sampling()
        transformers_logging.set_verbosity_error()
        self.name = "transformers" if draft is None else f"transformers, assisted by {draft.name}"

    @torch.inference_mode()
    def run(self, ids: Sequence[int], tokens: int, seed: int) -> Run:
        """See Contestant."""
        torch.manual_seed(seed)
        clock = _Clock()
        # With every core, as it would run by itself; ours leaves one to the page.
        ours = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or ours)
        try:
            self._generate(ids, tokens, clock)
        finally:
            torch.set_num_threads(ours)
        return Run(sum(clock.counts[2:]), clock.times[-1] - clock.times[1])

    def _generate(self, ids: Sequence[int], tokens: int, clock: _Clock) -> None:
        config = GenerationConfig(
            max_new_tokens=tokens, min_new_tokens=tokens, do_sample=self.sampling.temperature > 0,
            temperature=self.sampling.temperature, top_k=self.sampling.top_k, top_p=self.sampling.top_p,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        block = torch.tensor([list(ids)], device=self.model.device)
        self.model.generate(
            block, attention_mask=torch.ones_like(block), generation_config=config, streamer=clock,
            **({} if self.draft is None else {"assistant_model": self.draft}),
        )  # fmt: skip


class LlamaCpp:
    """llama.cpp through llama-cpp-python, on the GGUF file itself (its weights stay 4-bit)."""

    name = "llama.cpp"

    def __init__(self, path: str, context: int, threads: int, sampling: Sampling | None = None) -> None:
        try:
            from llama_cpp import Llama
        except ImportError as problem:
            raise ValueError(
                "--against llama.cpp needs the package llama-cpp-python, which is not installed."
            ) from problem
        self.sampling = sampling or Sampling()
        self.model = Llama(path, n_ctx=context, n_threads=threads, verbose=False)

    def run(self, ids: Sequence[int], tokens: int, seed: int) -> Run:
        """See Contestant."""
        self.model.reset()
        self.model.set_seed(seed)
        s = self.sampling
        times = []
        stream = self.model.generate(
            list(ids), top_k=s.top_k, top_p=s.top_p, min_p=s.min_p, temp=s.temperature, repeat_penalty=1.0
        )
        for _, _token in zip(range(tokens), stream, strict=False):
            times.append(time.perf_counter())
        return Run(len(times) - 1, times[-1] - times[0])
