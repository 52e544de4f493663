"""A pair ready to talk: the engine over target and drafters, with the tokenizer and template of the target.

The one place that puts the rooms together; the worker owns what it returns.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import psutil
import torch
from transformers import PreTrainedTokenizerBase

from specchat.chat.template import ChatTemplate
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Finished, Round
from specchat.decode.sampling import Sampling
from specchat.drafts import Draft, Model, default_draft, draft_of, drafters_of, is_head, runner_of, twin
from specchat.model.catalog import OWN_DRAFTS, PairOptions
from specchat.model.compact import CompactDecoder
from specchat.model.errors import ModelError, UnsupportedModel
from specchat.model.graphs import CudaReplayer, Replayer, demand_cuda
from specchat.model.head import StateHead
from specchat.model.linear import Precision
from specchat.model.loading import Loaded, load_model, pick_device
from specchat.model.memory import free_memory, give_back
from specchat.model.pairing import MemoryPlan, check, plan
from specchat.model.search import serve
from specchat.model.sources import kind_of, resolve
from specchat.model.threads import default_threads, measured_threads, settle
from specchat.yardstick import no_steps

Progress = Callable[[str], None]

DEFAULT_CONTEXT = 8192
"""Most ids a cache is made for unless asked otherwise: the whole of a 128k context would reserve gigabytes."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, for the memory bar. On a GPU `used` is what the device has given out; on a CPU the process's RSS.

    caches: on a GPU the whole buffers; on a CPU the part written so far, since the system commits pages only then.
    """

    kind: Literal["VRAM", "RSS"]
    target_weights: int
    draft_weights: int
    caches: int
    used: int
    free: int


@dataclass(frozen=True, slots=True)
class Facts:
    """How a pair came to be: what was asked for, the memory planned for it, the number of weights of each model.

    draft_weights: 0 for a draft that shares the target's.
    """

    options: PairOptions
    plan: MemoryPlan
    target_weights: int
    draft_weights: int


_numbers = itertools.count(1)


@dataclass(slots=True)
class Pair:
    """What the worker owns. Only the engine thread calls the models; names and sizes may be read by anyone."""

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    target: Model
    draft: Draft | None
    target_name: str
    draft_name: str
    eos_ids: frozenset[int]
    precision: str
    """How the matrices are multiplied, in words."""
    notes: tuple[str, ...] = ()
    """Remarks for the person: what was fallen back to, what will not work."""
    plain_step_s: float = 0.0
    """Seconds of a plain step, measured: see `yardstick`."""
    plain_step_source: str = ""
    plain_steps: deque[float] = field(default_factory=no_steps)
    """Seconds of the plain steps taken after the latest replies."""
    deepest: int = 0
    """Most ids that were seen in a cache: how far the buffers have been written."""
    facts: Facts | None = None
    """None for a pair that was not opened but put together."""
    number: int = field(default_factory=_numbers.__next__)
    """Tells this pair from every other of this run, whatever their names."""

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names that `Settings.drafter` may take, the default first; empty when this pair cannot speculate."""
        return tuple(self.engine.drafters) if self.target.can_rollback else ()

    @property
    def default_drafter(self) -> str:
        """The first of the drafters, "" without any."""
        return next(iter(self.drafters), "")

    @property
    def capacity(self) -> int:
        """Most ids of a conversation, reply included."""
        return self.target.capacity

    def room(self, max_new_tokens: int) -> int:
        """Ids a prompt may take: the reply keeps what it asks for, up to half of the context."""
        return self.capacity - min(max_new_tokens, self.capacity // 2)

    def memory(self) -> Memory:
        """Where the memory is now."""
        weights, drafts = self.target.weight_bytes, self._draft_weights()
        models = [self.target, *([self.draft] if self.draft else [])]
        device = self.target.device
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            return Memory("VRAM", weights, drafts, sum(m.cache_bytes for m in models), total - free, free)
        self.deepest = max(self.deepest, len(self.target.ids))
        caches = sum(
            model.cache_bytes * min(self.deepest, model.capacity) // model.capacity for model in models
        )
        used = psutil.Process().memory_info().rss
        return Memory("RSS", weights, drafts, caches, used, free_memory(device))

    def _draft_weights(self) -> int:
        """Bytes the draft adds: 0 for one that shares the target's weights."""
        if self.draft is None or getattr(self.draft, "model", None) is getattr(self.target, "model", self):
            return 0
        return self.draft.weight_bytes

    def warm_up(self, steps: int = 10) -> None:
        """One short plain reply and one speculative one, so that the first reply of a person is a warm one.

        Raises ModelError when the target cannot write at all; a draft that fails is a note.
        """
        ids = self.tokenizer("The quick brown fox", add_special_tokens=False)["input_ids"]

        def rounds(gamma: int) -> list[Round]:
            settings = Settings(gamma, Sampling(seed=0), self.default_drafter, steps)
            events = list(self.engine.generate(ids, lambda: settings))
            last = events[-1]
            if isinstance(last, Finished) and last.reason == "error":
                raise ModelError(f"{self.target_name} does not work here: {last.notice}")
            if isinstance(last, Finished) and last.notice and gamma and self.target.can_rollback:
                self.notes = (*self.notes, last.notice)
            return [event for event in events if isinstance(event, Round)]

        rounds(2)
        plain = rounds(0)
        # Medians over the later steps: the first ones still pay for buffers and threads.
        later = [r.seconds for r in plain[2:]] or [r.seconds for r in plain]
        self.plain_step_s = statistics.median(later) if later else 0.0
        self.plain_step_source = f"measured at start ({len(later)} steps on a short text)"

    def use_graphs(self, replayer: Replayer) -> None:
        """Target and draft replay recorded passes from now on. Raises UnsupportedModel where the target cannot."""
        if not isinstance(self.target, CompactDecoder):
            raise UnsupportedModel(
                f"--cuda-graphs needs a Llama-, Mistral- or Qwen-like target, which {self.target_name} is not; "
                "start without it."
            )

        def tell(text: str) -> None:
            # Once: what fails for one model mostly fails for the other.
            if not any(note.startswith("CUDA graphs are off") for note in self.notes):
                self.notes = (*self.notes, text)

        self.target.use_graphs(replayer, tell)
        if isinstance(self.draft, CompactDecoder | StateHead):
            self.draft.use_graphs(replayer, tell)
        elif self.draft is not None:
            tell(f"CUDA graphs are used for the target only: {self.draft_name} runs as the library's class.")

    def twin(self) -> Model:
        """A second cache over the target's weights: the target as its own draft, or a bare loop to compare with."""
        return twin(self.target)


def open_pair(options: PairOptions, progress: Progress) -> Pair:
    """Loads both models, checks that they belong together, and warms them up.

    Raises a ModelError with a sentence when a model cannot be had, does not fit in memory, or the two do not
    fit together. A target whose state cannot be rolled back is served plainly, with a note.
    """
    if options.cuda_graphs:
        demand_cuda(pick_device(options.device))
    settle(options.threads or default_threads())
    serve(pick_device(options.device), progress)
    choice = options.draft or default_draft(options.target)
    second = None if choice in OWN_DRAFTS or is_head(choice) else choice
    context = options.context or DEFAULT_CONTEXT
    for source in filter(None, (options.target, second)):
        if kind_of(source) != "hub":
            resolve(source, options.cache_dir, progress)
    planned = plan(
        options.target, second, context=context, dtype=load_dtype(options), device=options.device,
        cache_dir=options.cache_dir, own_draft=choice == "self",
    )  # fmt: skip
    planned.demand()
    loaded = _load(options.target, options, progress)
    notes: list[str] = []
    other = None
    if second is not None:
        other = _load(second, options, progress)
        fit = check(loaded, other)
        if loaded.rollback:
            fit.demand()
        notes += fit.notes
    if not loaded.rollback:
        notes.append(
            f"Speculation is off: {loaded.name} cannot take back rejected tokens ({loaded.no_rollback})."
        )
    vocab, weights, draft_weights = loaded.vocab, _count(loaded), _count(other)
    target = runner_of(loaded, vocab, min(context, loaded.context), options.precision)
    draft, draft_name = draft_of(choice, target, other, vocab, options.precision)
    notes += _remarks(target, loaded, options.precision)
    engine = Engine(target, drafters_of(choice, target, draft), loaded.eos_ids)
    pair = Pair(
        engine=engine,
        tokenizer=loaded.tokenizer,
        template=ChatTemplate(loaded.tokenizer, loaded.eos_ids),
        target=target,
        draft=draft,
        target_name=loaded.name,
        draft_name=draft_name,
        eos_ids=loaded.eos_ids,
        precision=getattr(target, "name", str(loaded.dtype).removeprefix("torch.")),
        notes=tuple(notes),
        facts=Facts(options, planned, weights, draft_weights or _head_weights(draft)),
    )
    del loaded, other
    give_back()
    if options.cuda_graphs:
        pair.use_graphs(CudaReplayer(target.device))
    elif options.threads is None:
        _choose_threads(target, draft)
    progress("Warming up and measuring a plain step.")
    pair.warm_up()
    return pair


def _count(model: Loaded | None) -> int:
    """Number of weights, a tied head counted once. To be asked before the matrices are packed."""
    return 0 if model is None else sum(weight.numel() for weight in model.module.parameters())


def _head_weights(draft: Draft | None) -> int:
    return sum(map(prod, draft.shape.matrices().values())) if isinstance(draft, StateHead) else 0


def load_dtype(options: PairOptions) -> str | None:
    """The type to load weights in. On a CPU they come as float32, and our own decoder packs them from there."""
    if pick_device(options.device).type == "cpu":
        return "float32"
    return options.precision if options.precision in ("float32", "float16", "bfloat16") else None


def _remarks(target: Model, loaded: Loaded, precision: Precision) -> list[str]:
    """What a person should know of how the target runs, when it is not what was asked for."""
    if isinstance(target, CompactDecoder):
        return [target.note] if target.note else []
    runs = str(loaded.dtype).removeprefix("torch.")
    if precision in ("auto", runs):
        return []
    return [f"{loaded.name} runs in {runs}: --precision {precision} is not there for its architecture."]


def _choose_threads(target: Model, draft: Draft | None) -> None:
    """Every core or all but one, by measurement, where both models are ours and say the same with either."""
    threads = measured_threads()
    if threads is None or not isinstance(target, CompactDecoder) or target.device.type != "cpu":
        return
    if draft is not None and not (isinstance(draft, CompactDecoder | StateHead) and draft.agrees(threads)):
        return
    if target.agrees(threads):
        target.threads = threads
        settle(threads)


def _load(source: str, options: PairOptions, progress: Progress) -> Loaded:
    return load_model(
        source,
        dtype=load_dtype(options),
        device=options.device,
        cache_dir=options.cache_dir,
        progress=progress,
    )
