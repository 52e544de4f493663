"""What the target writes for its draft: the target's own text, with the right owner, state and law at each id."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from specchat.chat.controls import control_tokens
from specchat.chat.template import ChatTemplate
from specchat.lab.distil import batch
from specchat.lab.distil.batch import BatchDecoder
from specchat.lab.distil.data import Corpus
from specchat.lab.distil.generate import Meter, _looping, write
from specchat.lab.distil.shards import ASSISTANT, TEMPLATE, USER, Record, Shards
from specchat.lab.distil.turns import turns_of
from specchat.model import linear
from specchat.model.compact import CompactDecoder
from specchat.model.errors import UnsupportedModel
from tests.chat.tok import DEFAULT_SYSTEM, DROPS_THOUGHT, GLUED, RAISES_ALWAYS, SPOKEN
from tests.lab.distil_rig import GREEDY, OPENINGS, SHORT, author_of, target_of, turns, written
from tests.tiny import CHATML, TINY_VOCAB, tiny_tokenizer


@pytest.fixture(autouse=True)
def _exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with the target itself is computed as the target does."""
    monkeypatch.setattr(batch, "has_bfloat16", lambda: False)


@pytest.mark.skipif(not linear.has_onednn(), reason="not on this machine")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_in_bulk_the_law_is_nearly_the_targets(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(kind)  # type: ignore[arg-type]
    exact = BatchDecoder(target, 2, 32)
    monkeypatch.setattr(batch, "has_bfloat16", lambda: True)
    bulk = BatchDecoder(target, 2, 32)
    assert isinstance(bulk.weights.layers[0].qkv, linear.Brain) and bulk.weights.head is target.weights.head
    for ids in ([3, 7], [9, 2], [4, 4]):
        p, q = (d.logits(d.step([0, 1], ids)).softmax(-1) for d in (exact, bulk))
        assert 0 < (p - q).abs().sum(-1).max() / 2 < 0.02, "another rounding, the same law"


def records(target: CompactDecoder, style: object, count: int, slots: int = 5) -> list[Record]:
    author = author_of(target, style, slots)  # type: ignore[arg-type]
    found: list[Record] = []
    while len(found) < count:
        found += author.step()
    return found


def alone(target: CompactDecoder, start: list[int], replies: int) -> tuple[list[int], list[int]]:
    """The same conversation by greedy decoding, one at a time."""
    t = turns()
    ids, roles = [*t.opening, *start], [TEMPLATE] * len(t.opening) + [USER] * len(start)
    target.reset()
    logits = target.forward(ids)[-1]

    def feed(id: int, role: int) -> None:
        nonlocal logits
        ids.append(id)
        roles.append(role)
        logits = target.forward([id])[-1]

    for reply in range(replies):
        for role, end, frame, longest in (
            (USER, t.user_end, t.to_reply, GREEDY.longest_user),
            (ASSISTANT, t.reply_end, t.to_user, GREEDY.longest_reply),
        ):
            spoken = len(start) if role == USER and not reply else 0
            while True:
                choice = int(logits.argmax())
                if role == ASSISTANT and spoken == longest:
                    return ids, roles
                if choice in t.controls or (role == USER and spoken == longest):
                    break
                feed(choice, role)
                spoken += 1
            feed(end, role)
            if role == ASSISTANT and reply == replies - 1:
                return ids, roles
            for id in frame[1:]:
                feed(id, TEMPLATE)
    return ids, roles


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_every_slot_and_refill_writes_what_the_target_alone_would(kind: str) -> None:
    """Greedy, so that the text is determined; mistral has a window that is shorter than a conversation."""
    target = target_of(kind)  # type: ignore[arg-type]
    found = records(target, GREEDY, 12)
    assert len({tuple(record.ids) for record in found}) > 4
    for record in found:
        first = len(turns().opening)
        start = record.ids[first : first + 2]
        assert start in OPENINGS
        replies = 1 + sum(
            record.roles[i] == USER and record.roles[i - 1] == TEMPLATE for i in range(first + 1, len(record.ids))
        )  # fmt: skip
        assert (record.ids, record.roles) == alone(target, start, replies)


def test_states_and_laws_are_those_of_their_ids() -> None:
    target = target_of()
    target.keep_states = True
    for record in records(target, SHORT, 12):
        target.reset()
        logits = target.forward(record.ids)
        assert target.states is not None
        states = target.states[: len(record.ids)]
        torch.testing.assert_close(
            torch.from_numpy(np.stack(record.states)).float(), states, atol=5e-3, rtol=5e-3
        )
        best = logits.topk(32)
        torch.testing.assert_close(
            torch.from_numpy(np.stack(record.top_logits)).float(), best.values, atol=2e-2, rtol=5e-3
        )
        given = logits.gather(1, torch.from_numpy(np.stack(record.top_ids)))
        torch.testing.assert_close(given, best.values, atol=1e-3, rtol=1e-3)
        drawn = [i for i in range(len(record.ids) - 1) if record.roles[i + 1] == ASSISTANT]
        for i in drawn:
            following = record.ids[i + 1]
            assert following == turns().reply_end or following in best.indices[i, :20].tolist()


def test_what_goes_round_in_circles_is_seen() -> None:
    assert _looping([1, 2, 3, 4] * 20, 0.4) and not _looping(list(range(80)), 0.4)
    assert not _looping([1, 2, 3, 4] * 20, 0.0)


# -- shards -------------------------------------------------------------------------------------------


def test_shards_come_back_as_they_were_written(tmp_path: Path) -> None:
    shards = Shards(tmp_path, TINY_VOCAB)
    shards.waiting = found = records(target_of(), SHORT, 40)
    shards.flush()
    corpus = Corpus(tmp_path)
    assert corpus.refresh() == 1 and corpus.refresh() == 0
    assert len(corpus.held_out) == len(found) // 20 and corpus.tokens == shards.tokens
    held = [found[i] for i in range(19, len(found), 20)]
    rest = [record for i, record in enumerate(found) if i % 20 != 19]
    for chats, own in ((corpus.train, rest), (corpus.held_out, held)):
        for chat, record in zip(chats, own, strict=True):
            assert chat.ids.tolist() == record.ids and chat.roles.tolist() == record.roles
            assert np.array_equal(chat.states, np.stack(record.states))
            assert np.array_equal(chat.top_logits, np.stack(record.top_logits))
            assert np.array_equal(chat.top_ids, np.stack(record.top_ids))
    assert not list(tmp_path.glob("*.tmp"))


def test_a_second_run_goes_on_with_other_conversations(tmp_path: Path) -> None:
    first = written(tmp_path, 1000).tokens
    again = written(tmp_path, 2400)
    assert first >= 1000 and again.tokens >= 2400
    assert [entry["shard"] for entry in again.index] == list(range(len(again.index)))
    corpus = Corpus(tmp_path)
    corpus.refresh()
    texts = [tuple(chat.ids) for chat in corpus.train]
    assert len(set(texts)) > 0.9 * len(texts)


@pytest.mark.parametrize("dies_at", ["shard-0-0002.hidden.npy", "shard-0-0002.npz", "index-0.json"])
def test_a_run_that_is_killed_while_writing_leaves_whole_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    before = written(tmp_path, 1000)
    replace = os.replace

    def killed(source: Path, place: Path) -> None:
        if Path(place).name == dies_at:
            raise KeyboardInterrupt
        replace(source, place)

    assert len(before.index) == 2
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            written(tmp_path, 1600)
    corpus = Corpus(tmp_path)
    corpus.refresh()
    assert corpus.tokens == before.tokens
    after = written(tmp_path, 1600)
    assert corpus.refresh() == len(after.index) - 2 and corpus.tokens == after.tokens >= 1600


def test_stopping_keeps_what_is_finished(tmp_path: Path) -> None:
    shards, steps = Shards(tmp_path, TINY_VOCAB), iter(range(60))
    write(author_of(target_of()), shards, 10**6, lambda: next(steps, None) is not None, lambda _: None)
    assert shards.tokens and shards.pending == 0
    assert json.loads((tmp_path / "index-0.json").read_text())[0]["tokens"] == shards.tokens


def test_the_progress_line_says_how_long_it_will_take() -> None:
    lines: list[str] = []
    meter = Meter(7_200_000, lines.append, every_s=0.0)
    meter.tell(0, 0, 0)
    assert meter.line(3_600_000, 1000.0, 7) == (
        "[##########..........]  50% 1:00:00 left, 3,600,000 of 7,200,000 tokens, 1000 tokens/s, "
        "7 conversations thrown away"
    )
    assert len(lines) == 1


# -- whose chat format will do ------------------------------------------------------------------------


def of(chat_template: str | None) -> object:
    tokenizer = tiny_tokenizer(chat_template=chat_template)
    eos = tokenizer.eos_token_id
    return turns_of(ChatTemplate(tokenizer, (eos,)), control_tokens(tokenizer, (eos,)))


@pytest.mark.parametrize("template", [CHATML, DEFAULT_SYSTEM])
def test_turns_are_found_in_the_template(template: str) -> None:
    tokenizer = tiny_tokenizer(chat_template=template)
    found = of(template)
    system = "<|im_start|>system\nYou are tiny<|im_end|>\n" if template == DEFAULT_SYSTEM else ""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    assert found.opening == ids(f"{system}<|im_start|>user\n")  # type: ignore[attr-defined]
    assert found.to_reply == ids("<|im_end|>\n<|im_start|>assistant\n")  # type: ignore[attr-defined]
    assert found.to_user == ids("<|im_end|>\n<|im_start|>user\n")  # type: ignore[attr-defined]


@pytest.mark.parametrize("template", [None, RAISES_ALWAYS, SPOKEN, GLUED])
def test_a_format_without_marked_turns_is_refused_in_a_sentence(template: str | None) -> None:
    with pytest.raises(UnsupportedModel, match=r"cannot be.*Choose another target\.$"):
        of(template)


def test_a_template_that_edits_replies_will_do() -> None:
    assert of(DROPS_THOUGHT) == of(CHATML)


def test_a_context_too_short_for_a_conversation_is_refused() -> None:
    target = target_of()
    target.capacity = 24
    with pytest.raises(UnsupportedModel, match="too short"):
        author_of(target)
