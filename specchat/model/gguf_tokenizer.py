"""The tokenizer a GGUF file describes, splitting text the way the model's own does.

A GGUF names its text splitter (`tokenizer.ggml.pre`) without containing it. transformers falls back to GPT-2's
for names it does not know, which gives other ids for the same text without a word; here such a name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from specchat.model.errors import BadCheckpoint, UnsupportedModel
from specchat.model.gguf_file import GgufSummary

_DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r")
_GPT2_LIKE = ("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone", "gigachat")
_WHOLE_WORDS_FIRST = (
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "tekken",
    "llama4",
)
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # ggml's token types


def gguf_tokenizer(summary: GgufSummary) -> PreTrainedTokenizerBase:
    """Build the tokenizer; UnsupportedModel if its kind or its splitter is unknown, BadCheckpoint if fields lack."""
    kind = summary.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(summary)
    try:
        # sentencepiece kinds: the file has everything the library needs to rebuild them
        return AutoTokenizer.from_pretrained(str(summary.path.parent), gguf_file=summary.path.name)
    except Exception as error:
        raise UnsupportedModel(
            f"{summary.path} has a tokenizer of kind '{kind}', which cannot be rebuilt from the file ({error}); "
            "use the model's Hugging Face folder instead."
        ) from error


def _byte_level(summary: GgufSummary) -> PreTrainedTokenizerFast:
    fields = summary.metadata
    tokens, merges = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise BadCheckpoint(f"{summary.path} lacks its token or merge list; fetch another copy.")
    types = fields.get("tokenizer.ggml.token_type")
    tokens, types = _without_padding(tokens, types if isinstance(types, list) else [1] * len(tokens))
    pre = str(fields.get("tokenizer.ggml.pre", "missing"))
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    added = [index for index, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)]
    spelled = [_spell(text, alphabet) for text in tokens]
    for index in added:
        spelled[index] = tokens[index]
    backend = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(spelled)},
            merges=[tuple(merge.split(" ")) for merge in merges],
            ignore_merges=pre in _WHOLE_WORDS_FIRST,
        )
    )
    backend.pre_tokenizer = _splitter(summary, pre)
    backend.decoder = decoders.ByteLevel()
    if pre in ("qwen2", "deepseek-r1-qwen", "qwen35"):
        backend.normalizer = normalizers.NFC()
    for index in added:
        token = AddedToken(tokens[index], normalized=False, special=types[index] == _CONTROL)
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return _wrap(summary, backend, tokens)


def _wrap(summary: GgufSummary, backend: Tokenizer, tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    """Give the backend its named tokens, start-of-text rule and chat template."""
    fields = summary.metadata
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    named: dict[str, str] = {}
    for name, key in names.items():
        index = fields.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and index < len(tokens):
            named[name] = tokens[index]
    if fields.get("tokenizer.ggml.add_bos_token") and "bos_token" in named:
        bos = named["bos_token"]
        start = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, backend.token_to_id(bos))]
        )
        backend.post_processor = start
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **named)
    template = fields.get("tokenizer.chat_template")
    tokenizer.chat_template = template if isinstance(template, str) else None
    return tokenizer


def _without_padding(tokens: list[str], types: list[int]) -> tuple[list[str], list[int]]:
    """Drop the invented names of padded rows ([PAD151665], ...) at the end: they are no tokens of the model."""
    keep = len(tokens)
    while keep and types[keep - 1] == _UNUSED and re.fullmatch(r"\[PAD\d+\]", tokens[keep - 1]):
        keep -= 1
    return tokens[:keep], types[:keep]


def _spell(text: str, alphabet: set[str]) -> str:
    """An ordinary token in byte-level spelling (a few files hold such tokens as plain text)."""
    if set(text) <= alphabet:
        return text
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)


def _splitter(summary: GgufSummary, pre: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in _GPT2_LIKE:
        return byte_level
    if pre in _DIGIT_BY_DIGIT:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    pattern = GGUF_PRE_TOKENIZER_SPLITS.get(pre)
    if pattern is None:
        raise UnsupportedModel(
            f"{summary.path} splits text by rules named '{pre}', which SpecChat does not know (other rules would give "
            "the model other tokens); use the model's Hugging Face folder instead."
        )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
