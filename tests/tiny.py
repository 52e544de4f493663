"""Tiny real checkpoints for tests: written in milliseconds, deterministic by seed, no network.

The models are the library's own classes with hidden size 64 and two layers. Their weights are scaled up so
that next-token distributions are far from uniform (greedy decoding then has clear winners, and a filter such
as top-k keeps something worth keeping). The tokenizer is a byte-level BPE built here: 256 bytes, a handful of
merges (one of them a two-newline merge), ChatML control tokens and template.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

Kind = Literal[
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3",
    "gpt2",
    "mixtral",
    "qwen3_moe",
    "mamba",
    "qwen3_next",
]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    ("Ċ", "Ċ"), ("Ġ", "t"), ("h", "e"), ("Ġ", "a"), ("Ġt", "he"), ("i", "n"), ("e", "r"), ("Ġ", "Ġ"),
    ("o", "u"), ("a", "n"), ("in", "g"), ("an", "d"), ("Ġ", "w"), ("l", "l"), ("o", "n"), ("r", "e"),
)  # fmt: skip


def _byte_symbols() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order (GPT-2's table)."""
    keep = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols, extra = {}, 0
    for byte in range(256):
        if byte in keep:
            symbols[byte] = chr(byte)
        else:
            symbols[byte] = chr(256 + extra)
            extra += 1
    return [symbols[byte] for byte in range(256)]


def tiny_tokenizer(
    extra_tokens: tuple[str, ...] = (),
    chat_template: str | None = CHATML,
    eos: str = "<|im_end|>",
    regex: bool = False,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: ids 0-255 are the bytes, then the merges, then the control tokens, then `extra_tokens`.

    `chat_template=None` gives a base-model tokenizer. `regex=True` splits text into words first, as GPT-2 does
    (the two-newline merge then never applies before a word).
    """
    symbols = _byte_symbols() + [left + right for left, right in MERGES]
    vocab = {symbol: index for index, symbol in enumerate(symbols)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES), fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    if extra_tokens:
        backend.add_tokens([AddedToken(text, normalized=False) for text in extra_tokens])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = chat_template
    return tokenizer


TINY_VOCAB = 256 + len(MERGES) + len(CONTROL)  # 275

_COMMON: dict[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_WINDOW = {"head_dim": 16, "sliding_window": 8}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_PER_KIND: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", _COMMON),
    "qwen2": ("qwen2", _COMMON),
    "qwen3": ("qwen3", {**_COMMON, "head_dim": 16}),
    "mistral": ("mistral", {**_COMMON, **_WINDOW}),
    "gemma2": ("gemma2", {**_COMMON, **_WINDOW, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        {
            **_COMMON,
            **_WINDOW,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 128, "n_positions": 512}),
    "mixtral": (
        "mixtral",
        {**_COMMON, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "qwen3_moe": ("qwen3_moe", {**_COMMON, **_EXPERTS, "head_dim": 16, "num_experts": 4}),
    "mamba": ("mamba", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "conv_kernel": 4}),
    "qwen3_next": (
        "qwen3_next",
        {
            **_COMMON,
            **_EXPERTS,
            "head_dim": 16,
            "num_experts": 4,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
}


def tiny_model(
    kind: Kind = "llama", seed: int = 0, vocab: int = TINY_VOCAB, scale: float = 3.0, **overrides: object
) -> PreTrainedModel:
    """A two-layer model of that family, float32, eval mode; same seed, same weights.

    `vocab` is the height of the embedding and the head (a padded head: give more than the tokenizer has);
    `overrides` are config fields (`max_position_embeddings=32`, `n_positions=32`, `sliding_window=8`, ...).
    The library initialises with std 0.02, whose logits are nearly flat. Here every layer adds about as
    much as the embedding carries, and a position's logits have a standard deviation of about `scale`.
    """
    model_type, fields = _PER_KIND[kind]
    ids = {"bos_token_id": TINY_VOCAB - 3, "eos_token_id": TINY_VOCAB - 1, "pad_token_id": TINY_VOCAB - 3}
    tied = {} if kind in ("llama", "qwen2", "qwen3") else {"tie_word_embeddings": False}
    config = AutoConfig.for_model(model_type, **{**fields, "vocab_size": vocab, **ids, **tied, **overrides})
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, weight in model.named_parameters():
            if weight.dim() < 2 or "A_log" in name:
                continue
            is_table = "head" in name or "embed" in name or "wte" in name
            spread = (scale if is_table else 1.0) / weight.shape[-1] ** 0.5
            weight.copy_(torch.randn(weight.shape, generator=generator) * spread)
    return model.eval()


def noisy_copy(model: PreTrainedModel, noise: float, seed: int = 1) -> PreTrainedModel:
    """The same model plus Gaussian noise of `noise` × each weight's own spread (the acceptance dial)."""
    twin = type(model)(model.config).eval()
    twin.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in twin.parameters():
            spread = weight.std() if weight.numel() > 1 else torch.tensor(0.0)
            weight.add_(torch.randn(weight.shape, generator=generator) * spread * noise)
    return twin


def logits_of(model: PreTrainedModel, length: int = 24) -> torch.Tensor:
    """Float32 logits [length, head rows] of one fixed text: equal for equal models."""
    ids = (torch.arange(length)[None] * 37 + 11) % TINY_VOCAB
    with torch.inference_mode():
        return model(input_ids=ids).logits[0].float()


def save_tiny(
    folder: Path | str,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    max_shard_size: str = "5GB",
) -> Path:
    """Write a Hugging Face folder (safetensors, config, generation config, tokenizer); returns its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (model or tiny_model()).save_pretrained(folder, max_shard_size=max_shard_size)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder


def edit_json(path: Path, **changes: object) -> None:
    """Overwrite some keys of a JSON file (a key given as None is removed)."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data.update(changes)
    path.write_text(
        json.dumps({key: value for key, value in data.items() if value is not None}), encoding="utf-8"
    )
