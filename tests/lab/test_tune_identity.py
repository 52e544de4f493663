"""What tells one pair from another: names are not enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specchat.decode.sampling import Sampling
from specchat.drafts import head_name
from specchat.lab.tune_advice import Advice
from specchat.lab.tune_identity import differences, identity_of
from specchat.lab.tune_memory import remember, remembered
from specchat.model.catalog import BUILTIN_HEAD, PairOptions
from specchat.model.pairing import MemoryPlan
from specchat.pair import Facts, Pair
from tests.worker.jobs import pair_of

ADVICE = Advice(3, "chain", 1.4, 60.0, "γ 3", "because", ())


def opened(**options: object) -> Pair:
    """A tiny pair that says of itself that it was opened so."""
    asked = PairOptions(**{"threads": 1, **options})  # type: ignore[arg-type]
    plan = MemoryPlan(0, 0, 0, 0, "cpu")
    return replace(pair_of(), facts=Facts(asked, plan, 0, 0))


def head(folder: Path, content: bytes) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "head.safetensors"
    path.write_bytes(content)
    return str(path)


def test_a_recommendation_belongs_to_the_head_it_was_measured_with(tmp_path: Path) -> None:
    mine, other = head(tmp_path / "a", b"one"), head(tmp_path / "b", b"two")
    remember(identity_of(opened(draft=mine)), Sampling(), ADVICE, tmp_path)
    assert remembered(opened(draft=mine), Sampling(), tmp_path) is not None
    assert remembered(opened(draft=other), Sampling(), tmp_path) is None
    moved = head(tmp_path / "c", b"one")
    assert remembered(opened(draft=moved), Sampling(), tmp_path) is not None, "the same head elsewhere"


def test_a_head_that_was_trained_again_is_another_one_but_not_for_the_pair_in_use(tmp_path: Path) -> None:
    before = opened(draft=head(tmp_path, b"one"))
    known = identity_of(before)
    after = opened(draft=head(tmp_path, b"two"))
    assert identity_of(before) == known
    assert differences(identity_of(after), known) == ["draft source"]


def test_folders_of_one_name_threads_and_context_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
    mine = identity_of(opened(target=str(tmp_path / "a" / "model")))
    assert differences(identity_of(opened(target=str(tmp_path / "b" / "model"))), mine)[0] == "target source"
    assert differences(identity_of(opened(threads=2)), identity_of(opened())) == ["threads"]
    assert identity_of(opened())["context"] == str(opened().capacity)
    assert identity_of(opened(target="owner/name"))["target source"] == "owner/name"


def test_a_head_is_called_by_its_file_unless_it_is_the_built_in_one() -> None:
    assert head_name(Path("runs/third.safetensors")) == "third"
    assert head_name(BUILTIN_HEAD) == "a trained head"
