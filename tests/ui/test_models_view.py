"""What the Models tab shows, without a browser: the loaded pair, findings, progress, the fields, the checking process."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.model.catalog import BUILTIN_HEAD, PAIRS, Finding, PairOptions
from specchat.model.pairing import MemoryPlan
from specchat.pair import Facts, Memory
from specchat.ui import models_form as form
from specchat.ui import models_view as view
from specchat.ui.checker import Checker
from specchat.worker import WorkerStatus
from tests.worker.jobs import pair_of

READY, LOADING = WorkerStatus("ready", "Ready", 0, 1.0), WorkerStatus("loading", "Loading tiny.", 0, 3.2)
HOSTILE = '"><img src=x onerror=alert(1)>'
ESCAPED = "&quot;&gt;&lt;img src=x onerror=alert(1)&gt;"


def test_everything_about_the_pair_is_in_the_text() -> None:
    pair = pair_of()
    pair.notes, pair.plain_step_s, pair.plain_step_source = (
        ("A remark.", "Another one."),
        0.031,
        "measured at start",
    )
    planned = MemoryPlan(540_000_000, 0, 380_000_000, 9_000_000_000, "cpu")
    pair.facts = Facts(
        PairOptions("/models/some folder", "/models/draft"), planned, 134_515_008, 8_030_000_000
    )
    html = view.loaded(
        pair, Memory("RSS", 269_000_000, 8_400_000, 47_000_000, 911_000_000, 5_200_000_000), READY
    )
    for text in (
        "tiny", "noisy", "135 million weights, 269 MB in memory", "8.03 billion weights, 8 MB in memory",
        "/models/some folder", "/models/draft", "cpu", "float32", "draft model", "512 tokens", "275 token ids",
        "31.0 ms, that is 32.3 tok/s", "measured at start", "911 MB used by this program", "need 0.92 GB of memory",
        "<li>A remark.</li><li>Another one.</li>",
    ):  # fmt: skip
        assert text in html, text


def test_a_trained_draft_says_how_often_it_was_accepted(tmp_path: Path) -> None:
    pair = pair_of()
    planned = MemoryPlan(540_000_000, 0, 380_000_000, 9_000_000_000, "cpu")

    def shown(options: PairOptions) -> str:
        pair.facts = Facts(options, planned, 1, 1)
        return view.loaded(pair, None, READY)

    about = json.loads(BUILTIN_HEAD.with_suffix(".json").read_text(encoding="utf-8"))
    places = ", ".join(f"{100 * share:.0f}" for share in about["held_out"]["acceptance_by_position"])
    said = "accepted on held-out texts when it was made"
    assert f"{said}: {places} %, by place in the block" in shown(PairOptions())
    assert said not in shown(PairOptions("another")) and said not in shown(PairOptions(draft="ngram"))
    for n, text in enumerate(
        ("", "[]", '{"held_out": {"acceptance_by_position": [2.0]}}', '{"held_out": 3}')
    ):
        (tmp_path / f"{n}.json").write_text(text, encoding="utf-8")
        assert said not in shown(PairOptions(draft=str(tmp_path / f"{n}.safetensors")))
    mine = '{"held_out": {"acceptance_by_position": [0.5, 0.25]}}'
    (tmp_path / "mine.json").write_text(mine, encoding="utf-8")
    for draft in ("mine.safetensors", "mine"):
        assert f"{said}: 50, 25 %" in shown(PairOptions(draft=str(tmp_path / draft)))


def test_no_pair_is_a_sentence_whatever_the_reason() -> None:
    assert "Loading: Loading tiny (3.0 s)" in view.loaded(None, None, LOADING)
    failed = view.loaded(None, None, WorkerStatus("failed", f"{HOSTILE} is not there.", 0, 1.0))
    assert ESCAPED in failed and "<img" not in failed and "Choose another pair" in failed


def test_paths_names_notes_and_findings_are_escaped() -> None:
    pair = pair_of()
    pair.target_name = pair.draft_name = pair.plain_step_source = HOSTILE
    pair.precision, pair.notes, pair.plain_step_s = HOSTILE, (HOSTILE,), 1.0
    pair.facts = Facts(PairOptions(HOSTILE, HOSTILE), MemoryPlan(1, 1, 1, 1, HOSTILE), 1, 1)
    shown = [
        view.loaded(pair, None, READY),
        view.findings([Finding(HOSTILE, "no", HOSTILE)]),
        view.sentence(HOSTILE),
        view.progress("failed", HOSTILE),
    ]
    assert all("<img" not in html and "&lt;img" in html for html in shown)


def test_what_stands_in_the_way_comes_first_in_words_as_well_as_marks() -> None:
    found = [Finding("Target", "yes", "a."), Finding("Memory", "no", "b."), Finding("Draft", "open", "c.")]
    html = view.findings(found)
    assert html.index("Memory") < html.index("Target") < html.index("Draft")
    assert "✗" in html and "stands in the way" in html and "not known yet" in html
    assert "One thing stands in the way." in html
    assert "fits, together and in memory" in view.verdict(found[:1])
    assert "only loading can show" in view.verdict(found[::2])
    assert view.findings([]) == view.progress("done", "") == ""


def test_the_hub_is_offered_only_where_it_could_say_more() -> None:
    assert view.asks_hub([Finding("Target", "open", "loading asks the hub (huggingface.co) for it.")])
    assert not view.asks_hub(
        [Finding("Target", "no", "huggingface.co"), Finding("Draft", "open", "converted")]
    )


def test_numbers_of_weights_are_rounded_for_people() -> None:
    assert [view.weights(n) for n in (109_248, 134_515_008, 7_620_000_000)] == [
        "109,248",
        "135 million",
        "7.62 billion",
    ]


# -- the fields ---------------------------------------------------------------------------------------

START = PairOptions("/a", "ngram", cache_dir="/cache")
FIELDS = ("/b", "shallow", "", "cpu", "int8", "2,048", "1")


def test_the_fields_become_options_and_keep_what_is_not_among_them() -> None:
    assert form.read(FIELDS, START) == PairOptions("/b", "shallow", "cpu", "int8", 1, 2048, "/cache")
    plain = ("/b", form.TYPED, " some/draft ", None, "auto", "", None)
    assert form.read(plain, START) == PairOptions("/b", "some/draft", cache_dir="/cache")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, "  ", "Name a target"), (1, form.TYPED, "Name the draft"), (4, "float8", "not offered"),
        (5, "8", "16 tokens or more"), (5, "many", "16 tokens or more"), (5, "-4", "16"), (5, "9" * 30, "16"),
        (6, "0", "from 1 to"), (6, "100000", "from 1 to"), (6, "²", "from 1 to"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_a_sentence(place: int, value: str, said: str) -> None:
    fields = [*FIELDS]
    fields[place] = value
    found = form.read(fields, START)
    assert isinstance(found, str) and said in found and found.endswith(".")


def test_a_draft_is_a_kind_or_a_text() -> None:
    assert form.split("") == ("", "") and form.split("self") == ("self", "")
    assert form.split(str(BUILTIN_HEAD)) == (str(BUILTIN_HEAD), "")
    assert form.split("/some/draft") == (form.TYPED, "/some/draft")
    assert {kind for _, kind in form.KINDS} >= {"", "shallow", "self", "ngram", "none", form.TYPED}


def test_the_catalogue_is_found_again_from_a_choice() -> None:
    assert view.known_key(PairOptions()) == PAIRS[0].key
    assert view.known_key(PairOptions(PAIRS[1].target, PAIRS[1].draft)) == PAIRS[1].key
    assert view.known_key(PairOptions("/a")) == "" == view.why("/a")
    assert len(view.KNOWN) == len(PAIRS) and PAIRS[2].why.split(";")[0] in view.why(PAIRS[2].key)


def test_a_device_that_was_asked_for_stays_among_the_choices() -> None:
    assert form.devices("cuda:5")[:2] == ["auto", "cpu"] and "cuda:5" in form.devices("cuda:5")


# -- the process that checks --------------------------------------------------------------------------


def script(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "child.py"
    path.write_text(text, encoding="utf-8")
    return sys.executable, str(path)


ECHO = """
import json, os, sys
for n, line in enumerate(sys.stdin):
    said = f"{n} {os.environ.get('HF_HUB_OFFLINE')} {json.loads(line)['options']['target']}"
    print(json.dumps([{"topic": "Target", "verdict": "yes", "text": said}]), flush=True)
"""


def test_one_process_answers_one_check_after_another_and_cannot_reach_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    checker = Checker(script(tmp_path, ECHO))
    texts = [checker.check(PairOptions(name))[0].text for name in ("/ä", "/b")]
    assert texts == ["0 1 /ä", "1 1 /b"]
    asked = checker.check(PairOptions("a/b"), ask_hub=True)[0].text
    assert asked.startswith("0 ") and "1 a/b" not in asked, (
        "asking is another process, which may use the network"
    )
    assert checker.check(PairOptions("/c"))[0].text == "2 1 /c"
    checker.close()
    assert checker.check(PairOptions("/d"))[0].text == "0 1 /d"
    checker.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import time; time.sleep(60)", "longer than 1 s"),
        ("raise SystemExit(3)", "process ended"),
        ("print('no JSON', flush=True); input()", "process ended"),
    ],
)
def test_a_process_that_hangs_or_dies_is_a_finding_and_the_next_check_works(
    tmp_path: Path, text: str, said: str
) -> None:
    checker = Checker(script(tmp_path, text), limit_s=1)
    found = checker.check(PairOptions())
    assert [one.verdict for one in found] == ["open"] and said in found[0].text
    checker._command, checker._limit_s = script(tmp_path, ECHO), 60
    assert checker.check(PairOptions("/e"))[0].text == "0 1 /e"
    checker.close()


def test_a_program_that_cannot_be_started_is_a_finding() -> None:
    found = Checker(("/no/such/program",)).check(replace(START))
    assert "process ended" in found[0].text
