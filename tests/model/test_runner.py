"""The runner against a recompute without cache: every architecture, every rollback, every bad id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from specchat.model.errors import ContextFull, IdOutOfRange
from specchat.model.runner import BufferLayer, Runner
from tests.oracle import full_logits
from tests.rigs import runner, tiny
from tests.tiny import TINY_VOCAB, Kind, tiny_model

ATTENTION: tuple[Kind, ...] = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "mixtral", "qwen3_moe",
)  # fmt: skip
RECURRENT: tuple[Kind, ...] = ("mamba", "qwen3_next")
TEXT = [17, 3, 250, 99, 4, 4, 61, 8, 120, 33, 7, 200, 45, 91, 2, 77, 260, 15, 6, 140, 88, 19, 230, 51]
CLOSE = {"atol": 2e-4, "rtol": 0}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ATTENTION)
def test_logits_after_any_mix_of_blocks_and_rollbacks_are_those_of_a_recompute(
    kind: Kind, attention: str
) -> None:
    """Also past the sliding window of 8, backwards over its edge, and with the branch replaced."""
    model = tiny(kind, attention=attention)
    mine = runner(model, 64)
    assert mine.can_rollback
    rng = torch.Generator().manual_seed(1)
    text: list[int] = []
    for step in range(24):
        if text and step % 3 == 2:
            n = int(torch.randint(1, min(len(text), 9) + 1, (), generator=rng))
            mine.rollback(n)
            del text[-n:]
        n = int(torch.randint(1, 7, (), generator=rng))
        block = torch.randint(0, TINY_VOCAB - 3, (min(n, 60 - len(text)),), generator=rng).tolist()
        text += block
        logits = mine.forward(block)
        assert logits.shape == (len(block), TINY_VOCAB) and logits.dtype == torch.float32
        assert mine.ids == text
        torch.testing.assert_close(
            logits, full_logits(model, text)[-len(block) :], **CLOSE, msg=f"step {step}"
        )


@pytest.mark.parametrize("kind", [*ATTENTION, *RECURRENT])
def test_reading_is_a_forward_without_its_logits(kind: Kind) -> None:
    model = tiny(kind)
    mine = runner(model, 64)
    mine.read(TEXT[:9])
    assert mine.ids == TEXT[:9]
    mine.read(TEXT[9:12])
    torch.testing.assert_close(mine.forward(TEXT[12:16]), full_logits(model, TEXT[:16])[12:], **CLOSE)


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_state_says_that_it_cannot_be_rolled_back_and_is_right_otherwise(kind: Kind) -> None:
    """Asked of the cache the library builds, not of the model's name."""
    model = tiny(kind)
    mine = runner(model, 64)
    assert not mine.can_rollback
    mine.forward(TEXT[:5])
    torch.testing.assert_close(mine.forward(TEXT[5:9]), full_logits(model, TEXT[:9])[5:], **CLOSE)
    with pytest.raises(AssertionError):
        mine.rollback(1)
    mine.rollback(0)
    mine.reset()
    torch.testing.assert_close(mine.forward(TEXT[3:9]), full_logits(model, TEXT[3:9]), **CLOSE)


def test_the_buffers_are_allocated_once_and_as_long_as_the_context() -> None:
    """No copy grows with the text, and a rollback moves nothing."""
    mine = runner(tiny(), 64)
    assert mine.cache_bytes == 0
    mine.forward(TEXT[:3])
    layers = [layer for layer in mine._buffer.layers if isinstance(layer, BufferLayer)]  # type: ignore[union-attr]
    places = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in layers]  # type: ignore[union-attr]
    size = mine.cache_bytes
    assert size == 2 * 2 * 64 * 2 * 16 * 4, "2 layers x keys and values x 64 places x 2 heads x 16 x 4 bytes"
    for _ in range(10):
        mine.forward(TEXT[3:9])
        mine.rollback(5)
    mine.reset()
    mine.read(TEXT)
    assert places == [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in layers]  # type: ignore[union-attr]
    assert mine.cache_bytes == size


def test_two_runners_over_one_module_share_weights_and_nothing_else() -> None:
    a, b = runner(tiny(), 64), runner(tiny(), 64)
    a.forward(TEXT[:8])
    right = full_logits(tiny(), TEXT[8:12])
    torch.testing.assert_close(b.forward(TEXT[8:12]), right, **CLOSE)
    assert a.ids == TEXT[:8]


def test_more_than_the_context_holds_is_refused_before_anything_is_computed() -> None:
    mine = runner(tiny(), 8)
    mine.forward(TEXT[:6])
    with pytest.raises(ContextFull, match="holds 8 tokens; 6 are in use and 3 more"):
        mine.forward(TEXT[6:9])
    assert mine.ids == TEXT[:6]
    torch.testing.assert_close(mine.forward(TEXT[6:8]), full_logits(tiny(), TEXT[:8])[6:], **CLOSE)


@pytest.mark.parametrize("bad", [TINY_VOCAB, 10**9, -1])
def test_an_id_outside_the_table_is_refused_and_the_next_forward_works(bad: int) -> None:
    mine = runner(tiny(), 64)
    mine.forward(TEXT[:3])
    for call in (mine.forward, mine.read):
        with pytest.raises(IdOutOfRange, match=str(bad)):
            call([4, bad, 5])
    assert mine.ids == TEXT[:3]
    torch.testing.assert_close(mine.forward(TEXT[3:5]), full_logits(tiny(), TEXT[:5])[3:], **CLOSE)


def test_no_id_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one id"):
        runner(tiny(), 64).forward([])


@pytest.fixture
def breakable() -> Iterator[tuple[PreTrainedModel, list[bool]]]:
    """A model whose second layer raises while told to: the first layer's buffer is written by then."""
    model, broken = tiny_model("llama"), [False]

    def hook(*args: object) -> None:
        if broken[0]:
            raise torch.OutOfMemoryError("out of memory")

    handle = model.model.layers[1].register_forward_pre_hook(hook)
    yield model, broken
    handle.remove()


@pytest.mark.parametrize("done", [0, 5])
def test_a_forward_that_fails_half_way_through_the_layers_leaves_the_cache_as_it_was(
    breakable: tuple[PreTrainedModel, list[bool]], done: int
) -> None:
    model, broken = breakable
    mine = runner(model, 64)
    if done:
        mine.forward(TEXT[:done])
    broken[0] = True
    for call in (mine.forward, mine.read):
        with pytest.raises(torch.OutOfMemoryError):
            call(TEXT[done : done + 3])
    broken[0] = False
    assert mine.ids == TEXT[:done]
    torch.testing.assert_close(
        mine.forward(TEXT[done : done + 4]), full_logits(model, TEXT[: done + 4])[done:], **CLOSE
    )


def test_rows_beyond_the_tokenizer_are_cut_and_missing_ones_are_impossible() -> None:
    wide, narrow = tiny_model("llama", vocab=320), tiny_model("llama", vocab=300)
    assert runner(wide, 64, 290).forward(TEXT[:4]).shape == (4, 290)
    logits = runner(narrow, 64, 310).forward(TEXT[:4])
    assert logits.shape == (4, 310) and bool((logits[:, 300:] == -torch.inf).all())
    torch.testing.assert_close(logits[:, :300], full_logits(narrow, TEXT[:4], 300), **CLOSE)


def test_states_are_the_heads_input_for_every_cached_id() -> None:
    mine = Runner(tiny(), TINY_VOCAB, 64)
    mine.keep_states = True
    mine.read(TEXT[:3])
    mine.forward(TEXT[3:7])
    mine.rollback(3)
    logits = mine.forward(TEXT[4:6])
    assert mine.states is not None and mine.states.shape == (64, 64)
    with torch.inference_mode():
        heads = tiny().lm_head(mine.states[: len(mine.ids)])
        torch.testing.assert_close(heads[4:], logits, **CLOSE)
        torch.testing.assert_close(heads, full_logits(tiny(), TEXT[:6]), **CLOSE)


def test_half_precision_weights_still_give_float32_logits() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    assert runner(model, 64).forward(TEXT[:4]).dtype == torch.float32


def test_weights_that_layers_share_are_counted_once() -> None:
    tied, untied = (runner(tiny_model("llama", tie_word_embeddings=tie), 64) for tie in (True, False))
    assert untied.weight_bytes - tied.weight_bytes == TINY_VOCAB * 64 * 4
