"""Tiny GGUF files for tests, laid out the way llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.tiny import tiny_model, tiny_tokenizer


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Llama's query/key rows in the order GGUF stores them (rotary pairs interleaved)."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


def _gguf_name(name: str) -> str | None:
    """Hugging Face parameter name of a Llama/Qwen2 -> GGUF tensor name; None for the tied head."""
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, part = name.split(".", 3)
    module, suffix = part.rsplit(".", 1)
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    return f"blk.{layer}.{parts[module]}.{suffix}"


def _rotary_divisors(config: PretrainedConfig) -> np.ndarray:
    """How much the library slows each rotary pair down against plain positions."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    width = 2 * scaled.numel()
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, width, 2).float() / width)
    return (plain / scaled).numpy().astype(np.float32)


def write_gguf(
    path: Path | str,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    quantisation: Literal["F32", "Q8_0"] = "F32",
    pre: str = "gpt-2",
) -> Path:
    """Write a tiny Llama or Qwen2 as a GGUF file, the way llama.cpp's converter lays it out.

    A tied head is left out (that is how GGUF says "tied"). Matrices are stored as `quantisation`, vectors as
    F32. A Llama-3 rotary scaling becomes the table rope_freqs, as llama.cpp writes it.
    """
    path = Path(path)
    model, tokenizer = model or tiny_model(tie_word_embeddings=True), tokenizer or tiny_tokenizer()
    config = model.config
    writer = gguf.GGUFWriter(str(path), config.model_type)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _write_tokenizer(writer, tokenizer, config.vocab_size, pre)
    kind = gguf.GGMLQuantizationType[quantisation]
    if config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _rotary_divisors(config))
    for name, tensor in model.state_dict().items():
        target = _gguf_name(name)
        if target is None or (target == "output.weight" and config.tie_word_embeddings):
            continue
        data = tensor.detach().numpy().astype(np.float32)
        if config.model_type == "llama" and (".attn_q." in target or ".attn_k." in target):
            data = _permuted(
                data, config.num_attention_heads if "attn_q" in target else config.num_key_value_heads
            )
        if data.ndim == 2 and quantisation != "F32":
            writer.add_tensor(target, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(
    writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast, rows: int, pre: str
) -> None:
    """The tokenizer fields of a GGUF: texts by id, types (1 normal, 3 control, 4 user, 5 unused), merges."""
    by_id = {index: text for text, index in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for index in range(rows):
        tokens.append(by_id.get(index, f"[PAD{index}]"))
        if index not in by_id:
            types.append(gguf.TokenType.UNUSED)
        elif index in added:
            types.append(gguf.TokenType.CONTROL if added[index].special else gguf.TokenType.USER_DEFINED)
        else:
            types.append(gguf.TokenType.NORMAL)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
