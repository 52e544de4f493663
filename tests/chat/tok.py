"""Tokenizers and chat templates for the chat tests, all built offline."""

from __future__ import annotations

from itertools import pairwise

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.tiny import CHATML, tiny_tokenizer

IM_START, IM_END = "<|im_start|>", "<|im_end|>"

DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are tiny<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = CHATML.replace("message['content']", "message['content'] | trim")
RAISES_ON_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
IGNORES_SYSTEM = CHATML.replace(
    "{{ '<|im_start|>'", "{% if message['role'] != 'system' %}{{ '<|im_start|>'", 1
)
IGNORES_SYSTEM = IGNORES_SYSTEM.replace("{% endfor %}", "{% endif %}{% endfor %}")
RAISES_ALWAYS = "{{ raise_exception('Only tool calls here') }}"
DROPS_THOUGHT = CHATML.replace(
    "message['content']",
    "(message['content'].split('</think>')[-1].lstrip('\n') "
    "if message['role'] == 'assistant' else message['content'])",
)
GLUED = (
    "{% for message in messages %}{{ '<|im_start|>' if message['role'] != 'system' }}{{ message['content'] }}"
    "{% endfor %}<|im_end|>"
)
SPOKEN = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + ' </s>' }}{% else %}"
    "{{ '[' + message['role'] + '] ' + message['content'] + ' [/' + message['role'] + ']' }}"
    "{% endif %}{% endfor %}"
)


def byte_level(chat_template: str | None = CHATML, extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """The project's tiny byte-level tokenizer; ids 0-255 are the bytes."""
    return tiny_tokenizer(extra_tokens=extra, chat_template=chat_template)


def sentence_piece(
    chat_template: str | None = SPOKEN, metaspace: bool = True, add_bos: bool = True
) -> PreTrainedTokenizerFast:
    """Llama-2's kind: ▁ for spaces, byte fallback, <s> put in front by default.

    metaspace: the newer way (pre-tokenizer, space before the first word only); else the older normaliser.
    """
    words = ["▁Hello", "▁world", "▁the", "▁cat", "▁sat", "▁a"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for char in [*"▁abcdefghijklmnopqrstuvwxyzH[]<>/.,!"]:
        vocab.setdefault(char, len(vocab))
    for word in words:
        for place in range(2, len(word) + 1):
            if word[:place] not in vocab:
                vocab[word[:place]] = len(vocab)
                merges.append((word[: place - 1], word[place - 1]))
    backend = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def unigram(chat_template: str | None = SPOKEN) -> PreTrainedTokenizerFast:
    """T5's kind: the control strings are ordinary pieces of the vocabulary as well."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((char, -5.0) for char in "▁abcdefghistu<>/[]")]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = chat_template
    return tokenizer


def word_piece() -> PreTrainedTokenizerFast:
    """BERT's kind: ## for continuations, spaces put back by the decoder."""
    words = ["[UNK]", "[SEP]", "the", "cat", "##s", "sat", ".", "do", "n", "'", "t"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    backend.add_special_tokens([AddedToken("[SEP]", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", sep_token="[SEP]")


def cut_into(text: str, places: list[int]) -> list[str]:
    """The text cut at these places (taken modulo its length)."""
    cuts = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(cuts)]
