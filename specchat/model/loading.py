"""Any source → a module ready to run, with its tokenizer and everything the rest must know about it.

Nothing is loaded before the files have been checked; what comes back has every weight from the files (none left at
random values), knows its end tokens, and knows whether its state can be rolled back.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DummyLayer, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging as transformers_logging

from specchat.model.checkpoint import Checkpoint, inspect_folder, read_json
from specchat.model.errors import BadCheckpoint, NotEnoughMemory, UnsupportedModel
from specchat.model.memory import count_weights, free_memory
from specchat.model.sources import display_name, resolve
from specchat.model.store import Progress, silent

END_TOKENS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<turn|>", "<|return|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_role|>",
)  # fmt: skip
"""Special tokens that end a turn or the text in the chat formats in use, whatever the configuration lists."""

_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
UNBOUNDED = 1 << 20
"""Context given to a model that states none (recurrent ones): more than any chat."""


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to run.

    vocab: width of the common logits: ids at or above it never occur (the tokenizer's ids, cut to the rows that
    embedding and head really have). eos_ids: every id that ends a turn. context: positions the model was made for.
    weight_bytes: memory of the weights, shared tensors counted once. no_rollback: why its state cannot be rolled
    back (plain decoding only); empty if it can.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    source: str
    dtype: torch.dtype
    device: torch.device
    weight_bytes: int
    eos_ids: frozenset[int]
    vocab: int
    context: int
    no_rollback: str

    @property
    def rollback(self) -> bool:
        """True if speculation can take back what was rejected."""
        return not self.no_rollback


def load_model(
    source: str,
    *,
    dtype: torch.dtype | str | None = None,
    device: str = "auto",
    cache_dir: Path | str | None = None,
    progress: Progress = silent,
) -> Loaded:
    """Load "builtin", a hub id, a Hugging Face folder or a GGUF file.

    dtype: default float32 on a CPU, bfloat16 on CUDA, float16 on Apple's GPU. device: "auto", "cpu", "cuda:0", ...
    Raises a ModelError with a sentence (FetchFailed, BadCheckpoint, UnsupportedModel, NotEnoughMemory).
    """
    place = pick_device(device)
    kind = pick_dtype(dtype, place)
    folder = resolve(source, cache_dir, progress)
    checkpoint = inspect_folder(folder)
    name = display_name(source)
    progress(f"Loading {name}.")
    tokenizer = read_tokenizer(folder)
    module = _module(checkpoint, kind, place)
    rows = [module.get_input_embeddings().weight.shape[0]]
    head = module.get_output_embeddings()
    if head is not None and getattr(head, "weight", None) is not None:
        rows.append(head.weight.shape[0])
    vocab = min(max(tokenizer.get_vocab().values()) + 1, *rows)
    return Loaded(
        module=module,
        tokenizer=tokenizer,
        name=name,
        source=source,
        dtype=kind,
        device=module.get_input_embeddings().weight.device,
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in module.parameters()),
        eos_ids=end_ids(checkpoint, tokenizer, vocab),
        vocab=vocab,
        context=context_of(module.config),
        no_rollback=why_no_rollback(module),
    )


def pick_device(device: str = "auto") -> torch.device:
    """CUDA, else the CPU; UnsupportedModel if a device is named that is not there.

    Apple's GPU only when it is asked for by name: SpecChat has not been tested on one.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise UnsupportedModel(f"'{device}' is no device; use auto, cpu, cuda, cuda:1 or mps.") from error
    present = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (place.index or 0) >= present.get(place.type, 0):
        raise UnsupportedModel(f"The device '{device}' is not on this machine; use auto or cpu.")
    return place


def pick_dtype(dtype: torch.dtype | str | None, device: torch.device) -> torch.dtype:
    """The type asked for, or the device's default; UnsupportedModel for a name that is none."""
    if isinstance(dtype, str):
        found = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
        if found is None:
            raise UnsupportedModel(f"'{dtype}' is not offered; use float32, bfloat16 or float16.")
        return found
    defaults = {"cuda": torch.bfloat16, "mps": torch.float16}
    return dtype or defaults.get(device.type, torch.float32)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder; BadCheckpoint if its files are missing or damaged."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if tokenizer.get_vocab():
            return tokenizer
        reason = "its vocabulary is empty"
    except Exception as error:  # the Rust reader raises plain Exception
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    raise BadCheckpoint(f"The tokenizer in {folder} cannot be read ({reason}); fetch its files again.")


def _module(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The module in eval mode on its device, every weight of it out of the files."""
    transformers_logging.disable_progress_bar()
    try:
        module, info = AutoModelForCausalLM.from_pretrained(
            str(checkpoint.folder),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            device_map=_placement(checkpoint, dtype, device),
            output_loading_info=True,
        )
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(f"{checkpoint.folder} does not fit into the memory of {device}.") from error
    except ImportError as error:
        raise UnsupportedModel(
            f"{checkpoint.folder} needs a package that is not installed ({error})."
        ) from error
    except (
        Exception
    ) as error:  # from_pretrained raises OSError, ValueError, RuntimeError, SafetensorError, ...
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise BadCheckpoint(
            f"{checkpoint.folder} cannot be loaded ({reason}); fetch its files again."
        ) from error
    lost = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if lost:
        raise BadCheckpoint(
            f"The weight files of {checkpoint.folder} lack {len(lost)} of the model's weights (first: {lost[0]}); "
            "fetch them again."
        )
    if module.config.is_encoder_decoder:
        raise UnsupportedModel(f"{checkpoint.folder} is an encoder-decoder model; choose a decoder-only one.")
    if not {"cache", "past_key_values"} & set(inspect.signature(module.forward).parameters):
        raise UnsupportedModel(
            f"{type(module).__name__} keeps its state in a form of its own, which SpecChat cannot carry from token to "
            "token; choose another model."
        )
    return module.eval()


def _placement(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> str | dict[str, torch.device] | None:
    """Where accelerate puts the weights: one device if they fit, else spread over what there is."""
    if device.type == "cpu":
        return None
    if device.type == "cuda":
        from transformers import AutoConfig

        need = count_weights(AutoConfig.from_pretrained(str(checkpoint.folder))) * dtype.itemsize
        if need > 0.9 * free_memory(device):
            return "auto"
    return {"": device}


def end_ids(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase, vocab: int) -> frozenset[int]:
    """Every id that ends a turn: stated in the two configuration files, the tokenizer's own, and well-known ones.

    The files themselves are read, because the configuration classes fill in a default (2 for Llama) that may be an
    ordinary token of this vocabulary.
    """
    generation = checkpoint.folder / "generation_config.json"
    files = [checkpoint.config] + ([read_json(generation)] if generation.exists() else [])
    text_part = checkpoint.config.get("text_config")
    if isinstance(text_part, dict):
        files.append(text_part)
    ids: set[object] = {tokenizer.eos_token_id}
    for file in files:
        stated = file.get("eos_token_id")
        ids.update(stated if isinstance(stated, Iterable) else [stated])
    for index, token in tokenizer.added_tokens_decoder.items():
        if token.special and token.content in END_TOKENS:
            ids.add(index)
    return frozenset(index for index in ids if isinstance(index, int) and 0 <= index < vocab)


def context_of(config: PretrainedConfig) -> int:
    """How many positions the model was made for (UNBOUNDED if it states none)."""
    text = config.get_text_config(decoder=True)
    stated = [getattr(text, name, None) for name in _POSITIONS]
    return min((value for value in stated if isinstance(value, int) and value > 0), default=UNBOUNDED)


def why_no_rollback(module: PreTrainedModel) -> str:
    """Empty if every layer's state is a list of positions that can be shortened; else the reason.

    Decided by the cache the library builds for this configuration, never by the model's name.
    """
    try:
        layers = DynamicCache(config=module.config).layers
    except Exception as error:  # a configuration the cache was not made for
        return f"the library has no cache for it ({error})"
    kinds = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)
    odd = sorted({type(layer).__name__ for layer in layers if type(layer) not in kinds})
    if odd:
        return f"it mixes earlier tokens into a state that cannot be taken apart again ({', '.join(odd)})"
    return "" if layers else "it keeps no keys and values"
