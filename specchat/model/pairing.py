"""May these two work together? Vocabulary, end tokens, contexts, rollback and memory, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import AutoConfig, PreTrainedTokenizerBase

from specchat.model.catalog import Finding, Verdict
from specchat.model.checkpoint import inspect_folder
from specchat.model.errors import BadCheckpoint, NotEnoughMemory, PairMismatch
from specchat.model.loading import Loaded, context_of, pick_device, pick_dtype
from specchat.model.memory import cache_bytes, count_weights, free_memory, gigabytes
from specchat.model.sketch import Sketch
from specchat.model.sources import hub_config, kind_of, resolve


@dataclass(frozen=True)
class Fit:
    """ok: the pair may speculate. reasons: why not, a sentence each. notes: what works but should be known."""

    ok: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    def demand(self) -> None:
        """Raise PairMismatch with all reasons unless ok."""
        if not self.ok:
            raise PairMismatch(" ".join(self.reasons))


def check(target: Loaded | Sketch, draft: Loaded | Sketch) -> Fit:
    """Compare two models by content. A draft of another family with the same vocabulary is fine."""
    found = compare(target, draft)
    reasons = tuple(one.text for one in found if one.verdict == "no")
    return Fit(not reasons, reasons, tuple(one.text for one in found if one.verdict == "note"))


def compare(target: Loaded | Sketch, draft: Loaded | Sketch) -> list[Finding]:
    """What `check` looks at, one by one: vocabulary, roll-back, context, end tokens."""
    difference = first_difference(target.tokenizer, draft.tokenizer)
    found = [_vocabulary(target, draft, difference), *_rollback(target, draft)]
    if draft.context < target.context:
        found.append(
            Finding(
                "Context",
                "note",
                f"The draft was made for {draft.context} tokens and the target for {target.context}; beyond the "
                "draft's, replies are decoded plainly.",
            )
        )
    if not difference and target.eos_ids != draft.eos_ids:
        found.append(Finding("End tokens", "note", "The two list different end tokens; the target's count."))
    elif not difference:
        found.append(Finding("End tokens", "yes", "The two end a turn with the same tokens."))
    return found


def _vocabulary(target: Loaded | Sketch, draft: Loaded | Sketch, difference: str) -> Finding:
    rows = draft.module.get_input_embeddings().weight.shape[0]
    verdict: Verdict = "no"
    if difference:
        text = (
            f"{target.name} and {draft.name} do not share a vocabulary: {difference}. "
            "Choose a draft with the target's tokenizer."
        )
    elif rows < target.vocab:
        text = (
            f"The draft {draft.name} has embedding rows for {rows} ids and cannot read the target's ids up to "
            f"{target.vocab - 1}."
        )
    elif target.vocab != draft.vocab:
        verdict = "note"
        text = (
            f"The models have rows for {target.vocab} and {draft.vocab} token ids; ids only one of them has are never "
            "proposed."
        )
    else:
        verdict, text = "yes", f"The same {target.vocab:,} ids mean the same texts in both."
    return Finding("Vocabulary", verdict, text)


def _rollback(target: Loaded | Sketch, draft: Loaded | Sketch) -> list[Finding]:
    bad = [
        Finding(
            "Roll-back",
            "no",
            f"The {role} {model.name} cannot take back rejected tokens: {model.no_rollback}. Plain decoding works.",
        )
        for role, model in (("target", target), ("draft", draft))
        if model.no_rollback
    ]
    return bad or [Finding("Roll-back", "yes", "Both can take back what was rejected.")]


def first_difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str:
    """The lowest id that means different texts, in words; empty if both map the same ids to the same texts.

    Added and special tokens count; how many rows the models' heads are padded to does not.
    """
    ours = {index: text for text, index in target.get_vocab().items()}
    theirs = {index: text for text, index in draft.get_vocab().items()}
    if ours == theirs:
        return ""
    index = min(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))

    def said(vocabulary: dict[int, str]) -> str:
        return repr(vocabulary[index]) if index in vocabulary else "nothing"

    return f"id {index} is {said(ours)} in the target and {said(theirs)} in the draft"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes, before anything is loaded. `spill_bytes`: RAM that may take weights when a GPU is too small.

    freed_bytes: what a pair that is still loaded gives back first.
    """

    target_bytes: int
    draft_bytes: int
    cache_bytes: int
    free_bytes: int
    device: str
    spill_bytes: int = 0
    freed_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """Weights of both and the caches for the whole context."""
        return self.target_bytes + self.draft_bytes + self.cache_bytes

    @property
    def fits(self) -> bool:
        """False if loading should not even be tried."""
        # Weights may spill into RAM, caches are always made on the device.
        free = self.free_bytes + self.freed_bytes
        return self.needed_bytes <= free + self.spill_bytes and self.cache_bytes <= free

    @property
    def sentence(self) -> str:
        """The plan in words, for the screen and for the refusal."""
        parts = f"target {gigabytes(self.target_bytes)}, draft {gigabytes(self.draft_bytes)}"
        where = "VRAM" if self.device.startswith("cuda") else "memory"
        spill = f" (and {gigabytes(self.spill_bytes)} of RAM)" if self.spill_bytes else ""
        freed = (
            f", {gigabytes(self.freed_bytes)} more once the present pair is gone" if self.freed_bytes else ""
        )
        text = (
            f"{parts} and caches {gigabytes(self.cache_bytes)} need {gigabytes(self.needed_bytes)} of {where}; "
            f"{gigabytes(self.free_bytes)} are free{spill}{freed}."
        )
        text = text[0].upper() + text[1:]
        if self.fits:
            return text
        return text + " Choose smaller models or a shorter context, or close other programs."

    def demand(self) -> None:
        """Raise NotEnoughMemory unless it fits."""
        if not self.fits:
            raise NotEnoughMemory(self.sentence)


def plan(
    target: str,
    draft: str | None = None,
    *,
    context: int = 8192,
    dtype: torch.dtype | str | None = None,
    device: str = "auto",
    cache_dir: Path | str | None = None,
    own_draft: bool = False,
) -> MemoryPlan:
    """Memory both models would take, from their configurations alone (no weights are read or fetched).

    context: positions to hold (a model made for fewer holds fewer). Caches are counted in the weights' type.

    own_draft: the target drafts for itself, with a second cache over the same weights.

    A GGUF file or the built-in model that has not been converted yet is converted first. `draft` None (or a source
    that is no second model) counts nothing. Raises a ModelError if a source cannot be found or read.
    """
    place = pick_device(device)
    kind = pick_dtype(dtype, place)
    ours = _size(target, context, kind, cache_dir)
    theirs = _size(draft, context, kind, cache_dir) if draft else (0, 0)
    return _planned(ours, theirs, place, own_draft, 0)


def plan_of(
    target: Sketch,
    draft: Sketch | None,
    *,
    context: int,
    dtype: torch.dtype | str | None,
    device: str,
    own_draft: bool,
    freed: int,
) -> MemoryPlan:
    """As `plan`, from sketches. freed: bytes that the pair loaded now gives back first."""
    place = pick_device(device)
    kind = pick_dtype(dtype, place)

    def size(model: Sketch) -> tuple[int, int]:
        held = min(context, model.context)
        return model.weights * kind.itemsize, cache_bytes(model.module.config, held, kind)

    return _planned(size(target), size(draft) if draft else (0, 0), place, own_draft, freed)


def _planned(
    target: tuple[int, int], draft: tuple[int, int], place: torch.device, own_draft: bool, freed: int
) -> MemoryPlan:
    """From (bytes of the weights, bytes of the cache) of each."""
    return MemoryPlan(
        target[0],
        draft[0],
        target[1] + (target[1] if own_draft else draft[1]),
        free_memory(place),
        str(place),
        int(psutil.virtual_memory().available) if place.type == "cuda" else 0,
        freed,
    )


def _size(source: str, context: int, dtype: torch.dtype, cache_dir: Path | str | None) -> tuple[int, int]:
    """(bytes of the weights, bytes of the cache)."""
    if kind_of(source) == "hub":
        folder = hub_config(source)
    else:
        folder = resolve(source, cache_dir)
        inspect_folder(folder)
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        held = min(context, context_of(config))
        return count_weights(config) * dtype.itemsize, cache_bytes(config, held, dtype)
    except Exception as error:  # a configuration that is nonsense fails anywhere in the library
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadCheckpoint(
            f"The configuration of {source} describes no model that can be built ({reason})."
        ) from error
