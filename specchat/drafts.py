"""Which draft a choice means, and which drafters the page offers with it."""

from __future__ import annotations

from pathlib import Path

from specchat.decode.drafters import ChainDrafter, Drafter, ModelDrafter
from specchat.decode.head_drafter import HeadDrafter
from specchat.decode.ngrams import NgramDrafter
from specchat.model.catalog import BUILTIN, BUILTIN_HEAD
from specchat.model.compact import CompactDecoder, supports_module
from specchat.model.errors import UnsupportedModel
from specchat.model.head import StateHead
from specchat.model.head_file import load_head
from specchat.model.linear import Precision
from specchat.model.loading import Loaded
from specchat.model.runner import Runner

Model = Runner | CompactDecoder
Draft = Model | StateHead

SHALLOW_LAYERS = 2


def default_draft(target: str) -> str:
    """For the built-in target the draft trained for it; for any other the one that needs nothing."""
    if target != BUILTIN:
        return "ngram"
    return str(BUILTIN_HEAD) if BUILTIN_HEAD.is_file() else "shallow"


def is_head(choice: str) -> bool:
    """Whether the draft is the file of a trained head (a model comes as a folder, a GGUF file or a hub id)."""
    return choice.endswith(".safetensors")


def head_name(path: Path) -> str:
    """What a trained head is called on the screen: by its file, unless it came with the program."""
    return "a trained head" if path.resolve() == BUILTIN_HEAD.resolve() else path.stem


def runner_of(loaded: Loaded, vocab: int, capacity: int, precision: Precision) -> Model:
    """Our own decoder where it knows the architecture, the library's class behind a rollback-able cache elsewhere."""
    if supports_module(loaded.module) is None:
        return CompactDecoder.from_module(loaded.module, vocab, capacity, precision, consume=True)
    return Runner(loaded.module, vocab, capacity)


def twin(model: Model) -> Model:
    """A second cache over the same weights."""
    if isinstance(model, CompactDecoder):
        return model.first_layers(len(model.weights.layers))
    return Runner(model.model, model.vocab, model.capacity)


def draft_of(
    choice: str, target: Model, other: Loaded | None, vocab: int, precision: Precision
) -> tuple[Draft | None, str]:
    """The draft of this choice, and its name for the screen."""
    if other is not None:
        return runner_of(other, vocab, min(target.capacity, other.context), precision), other.name
    if not target.can_rollback or choice == "none":
        return None, "none"
    if choice == "self":
        return twin(target), "the target itself"
    if choice == "shallow" or is_head(choice):
        if not isinstance(target, CompactDecoder):
            raise UnsupportedModel(
                "This draft needs a Llama-, Mistral- or Qwen-like target; use --draft ngram here."
            )
        if is_head(choice):
            path = Path(choice).expanduser()
            return load_head(path, target), head_name(path)
        layers = min(SHALLOW_LAYERS, len(target.weights.layers))
        return target.first_layers(layers), f"its first {layers} layers (untrained)"
    return None, "n-grams of the text"


def drafters_of(choice: str, target: Model, draft: Draft | None) -> dict[str, Drafter]:
    """What the page offers, the default first: free n-grams chained with the model where there is one."""
    if choice == "none":
        return {}
    if draft is None:
        return {"ngram": NgramDrafter()}
    model = HeadDrafter(target, draft) if isinstance(draft, StateHead) else ModelDrafter(draft)
    ngram = NgramDrafter()
    if choice == "self":
        return {"model": model, "ngram": ngram}
    return {"chain": ChainDrafter(ngram, model), "model": model, "ngram": ngram}
