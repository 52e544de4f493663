"""Real models through the engine: every architecture the library is asked for writes its plain text.

The reference recomputes everything without a cache for every token, so an error of the cache cannot hide.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

from specchat.decode.drafters import Forward
from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.model.compact import CompactDecoder, supports_module
from specchat.model.runner import Runner
from tests.oracle import GREEDY, Reference, full_logits, reference
from tests.rigs import collect, engine_of, noisy, runner, tiny
from tests.tiny import TINY_VOCAB, Kind, noisy_copy, tiny_model

ATTENTION: tuple[Kind, ...] = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2", "mixtral", "qwen3_moe",
)  # fmt: skip
SLIDING: tuple[Kind, ...] = ("mistral", "gemma2", "gemma3")
RECURRENT: tuple[Kind, ...] = ("mamba", "qwen3_next")
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
LENGTHS = (4, 7, 8, 9, 20)
"""Prompts shorter than, around and beyond a sliding window of 8."""


def prompt_of(length: int) -> list[int]:
    return [(7 * i) % 90 for i in range(length)]


@cache
def plain(kind: Kind, prompt: tuple[int, ...], n: int) -> Reference:
    return reference(tiny(kind), prompt, n)


@pytest.mark.parametrize("kind", ATTENTION)
def test_greedy_text_is_plain_text_while_gamma_runs_from_0_to_16(kind: Kind) -> None:
    """Each round another γ and another drafter, over a draft that is right now and then."""
    right = plain(kind, tuple(PROMPT), 48)
    gammas, names = itertools.cycle([4, *range(17)]), itertools.cycle(["model", "chain", "ngram"])
    engine = engine_of(runner(tiny(kind)), runner(noisy(kind)))
    reply = collect(engine, PROMPT, lambda: Settings(next(gammas), GREEDY, next(names), 48))
    right.check(reply.ids, kind)
    assert "a" in reply.origins and "r" in reply.origins, "a draft that is always right or wrong tests half"


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("drafter", ["model", "ngram", "chain"])
def test_every_architecture_writes_its_plain_text_with_every_drafter(kind: Kind, drafter: str) -> None:
    for draft in (tiny(kind), noisy(kind)):
        reply = collect(
            engine_of(runner(tiny(kind)), runner(draft)), PROMPT, Settings(4, GREEDY, drafter, 24)
        )
        plain(kind, tuple(PROMPT), 48).check([*reply.ids, *plain(kind, tuple(PROMPT), 48).ids[24:]], kind)
        if draft is tiny(kind) and drafter == "model":
            assert all(event.accepted == event.drafted for event in reply.rounds), "a twin was turned down"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", SLIDING)
def test_a_sliding_window_is_rolled_back_without_a_trace(kind: Kind, length: int, attention: str) -> None:
    prompt = prompt_of(length)
    right = plain(kind, tuple(prompt), 16)
    target, draft = tiny(kind, attention=attention), noisy(kind)
    engine = engine_of(runner(target), runner(draft))
    for gamma in (0, 4):
        reply = collect(engine, prompt, Settings(gamma, GREEDY, "model", 16))
        right.check(reply.ids, f"{kind}, prompt of {length}, {attention}, γ = {gamma}")


@pytest.mark.parametrize("kind", [k for k in ATTENTION if supports_module(tiny_model(k)) is None])
def test_our_own_decoder_writes_the_library_models_text(kind: Kind) -> None:
    def compact(seed_or_noise: float) -> Forward:
        model = tiny_model(kind) if not seed_or_noise else noisy_copy(tiny_model(kind), seed_or_noise)
        return CompactDecoder.from_module(model, TINY_VOCAB, 256, "float32")

    engine = engine_of(compact(0), compact(0.05))
    for gamma, drafter in [(0, "model"), (4, "model"), (3, "chain"), (8, "ngram")]:
        reply = collect(engine, PROMPT, Settings(gamma, GREEDY, drafter, 48))
        plain(kind, tuple(PROMPT), 48).check(reply.ids, f"{kind}, γ = {gamma}, {drafter}")


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_target_is_decoded_plainly_and_says_so(kind: Kind) -> None:
    right = plain(kind, tuple(PROMPT), 16)
    draft = runner(tiny())
    engine = engine_of(runner(tiny(kind)), draft)
    reply = collect(engine, PROMPT, Settings(4, GREEDY, "model", 16))
    right.check(reply.ids, kind)
    assert reply.origins == "p" * 16 and draft.ids == [], "a draft was read for nothing"
    assert "without speculation" in reply.finished.notice
    follow = [*PROMPT, *reply.ids, 9, 10]
    warm = collect(engine, follow, Settings(0, GREEDY, "model", 8))
    reference(tiny(kind), follow, 8).check(warm.ids, f"{kind}, second turn")
    assert warm.rounds[0].prefill is not None and warm.rounds[0].prefill.read == 2
    assert warm.finished.notice == "", "without speculation asked for, there is nothing to say"
    edited = [*PROMPT[:6], 30, 31]
    reference(tiny(kind), edited, 8).check(
        collect(engine, edited, Settings(4, GREEDY, "model", 8)).ids, "edited"
    )


def test_a_recurrent_draft_never_spoils_the_text() -> None:
    engine = engine_of(runner(tiny()), runner(tiny("mamba")))
    reply = collect(engine, PROMPT, Settings(4, GREEDY, "model", 16))
    plain("llama", tuple(PROMPT), 16).check(reply.ids)
    assert reply.finished.reason == "length" and reply.finished.notice


@pytest.mark.parametrize(("draft_rows", "target_rows"), [(300, 320), (320, 300)])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.2, 0, seed=2)], ids=["greedy", "sampling"])
def test_heads_padded_to_different_widths_share_one_tokenizer(
    draft_rows: int, target_rows: int, sampling: Sampling
) -> None:
    """290 ids; the padded rows are given the largest logits of all, and must still never come out."""
    target, draft = tiny_model("qwen2", vocab=target_rows), tiny_model("qwen2", vocab=draft_rows)
    with torch.no_grad():
        draft.lm_head.weight[:290] = target.lm_head.weight[:290]
        draft.model.embed_tokens.weight[:290] = target.model.embed_tokens.weight[:290]
        state = {name: weight for name, weight in target.state_dict().items() if "layers" in name}
        draft.load_state_dict(state, strict=False)
        for model in (target, draft):
            rows = model.lm_head.weight.shape[0] - 290
            model.lm_head.weight[290:] = 5 * model.lm_head.weight[:rows]
    raw = full_logits(target, PROMPT, target_rows)
    assert int(raw.argmax(-1).max()) >= 290, "the rig's padded rows never win, so nothing is tested"
    engine = engine_of(Runner(target, 290, 128), Runner(draft, 290, 128))
    reply = collect(engine, PROMPT, Settings(4, sampling, "model", 40))
    assert max(reply.ids) < 290
    assert all(event.accepted == event.drafted for event in reply.rounds), "p and q are not aligned"
    if sampling.greedy:
        text = list(PROMPT)
        for id in reply.ids:
            assert id == int(full_logits(target, text, 290)[-1].argmax())
            text.append(id)


def test_a_head_shorter_than_the_tokenizer_offers_its_missing_ids_never() -> None:
    """A draft with 280 of 290 rows: the target may write the others, the reply goes on without the draft."""
    target, draft = tiny_model("qwen2", vocab=290), tiny_model("qwen2", vocab=280)
    engine = engine_of(Runner(target, 290, 128), Runner(draft, 290, 128))
    settings = Settings(3, Sampling(3.0, 0, seed=1), "model", 60)
    reply = collect(engine, PROMPT, settings)
    assert reply.finished.reason == "length" and len(reply.ids) == 60
    drafted = [token.id for event in reply.rounds for token in event.tokens if token.origin == "accepted"]
    assert all(id < 280 for id in drafted)


def test_a_draft_with_fewer_learned_positions_than_the_text_falls_silent() -> None:
    """Draft: GPT-2 with 32 learned positions. Beyond them it would look up a row that does not exist."""
    target, draft = tiny_model("gpt2"), tiny_model("gpt2", n_positions=32)
    engine = engine_of(Runner(target, TINY_VOCAB, 256), Runner(draft, TINY_VOCAB, 32))
    reply = collect(engine, PROMPT, Settings(4, GREEDY, "model", 60))
    reference(target, PROMPT, 60).check(reply.ids)
    assert reply.finished.notice == ""
    speculated = [event.drafted > 0 for event in reply.rounds]
    assert any(speculated) and not any(speculated[-10:])


# -- two devices ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("target_on", "draft_on"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
@pytest.mark.parametrize("draft_dtype", [torch.float32, torch.bfloat16])
def test_target_and_draft_may_sit_on_different_devices(
    target_on: str, draft_on: str, draft_dtype: torch.dtype
) -> None:
    target = tiny_model("llama").to(target_on)
    draft = noisy_copy(tiny_model("llama"), 0.05).to(draft_on, draft_dtype)
    engine = engine_of(Runner(target, TINY_VOCAB, 256), Runner(draft, TINY_VOCAB, 256))
    reply = collect(engine, PROMPT, Settings(4, GREEDY, "chain", 48))
    plain("llama", tuple(PROMPT), 48).check(reply.ids, f"target on {target_on}, draft on {draft_on}")
    assert reply.finished.notice == "" and "a" in reply.origins
    sampled = Settings(4, Sampling(0.9, 20, 0.95, 0.02, 1.1, 0.1, 0.1, seed=5), "model", 48)
    first, again = collect(engine, PROMPT, sampled), collect(engine, PROMPT, sampled)
    assert first.ids == again.ids and first.finished.notice == "" and "a" in first.origins
