"""Replay by the recorded times, comparison, export, and the terminal's commands."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specchat import cli
from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.jobs import Done, Job, Live
from specchat.lab import compare, replay_command
from specchat.lab.export_csv import COLUMNS, as_csv
from specchat.lab.export_figures import ticks
from specchat.lab.export_html import as_html
from specchat.lab.record import Recorder, stats_line
from specchat.lab.record_parts import Record, flat
from specchat.lab.record_read import read, read_all
from specchat.lab.record_write import as_bytes, write
from specchat.lab.replay import Replay
from specchat.reply import reply
from tests.lab.records import HOSTILE, beat, record, slowly
from tests.worker.jobs import job, pair_of


def recorded(settings: Settings, change: Settings | None = None) -> tuple[Record, Done]:
    """A reply of a tiny pair, recorded; change: settings from its third round on."""
    pair, recorder = pair_of(), Recorder()
    live = Live(settings)
    asked = Job(job("hello <b>you</b>").messages, live, "Be brief.")

    def put(event: object) -> None:
        recorder.see(event)  # type: ignore[arg-type]
        if change is not None and len(recorder.rounds) == 2:
            live.set(change)

    done = reply(pair, asked, lambda: False, put)
    return recorder.record(pair, asked, done), done


GREEDY = Settings(4, Sampling(0.0), "model", 24)


def test_a_reply_is_recorded_with_its_text_and_numbers() -> None:
    one, done = recorded(GREEDY)
    back = read(as_bytes([one]))
    assert back == one
    assert back.text == done.message.content
    assert back.finished == done.finished
    assert stats_line(back.finished, back.stats()) == stats_line(done.finished, done.stats)
    assert back.head.pair.target == "tiny" and back.head.system == "Be brief."
    assert flat(back.head.settings)["gamma"] == 4


def test_settings_are_recorded_from_the_round_they_were_in_force() -> None:
    one, _ = recorded(GREEDY, replace(GREEDY, gamma=1))
    changed = [b.round.index for b in one.beats if b.round.settings_changed]
    assert [change.from_round for change in one.changes] == changed == [2]
    assert one.changes[0].settings["gamma"] == 1
    assert one.head.settings["gamma"] == 4


def test_a_replay_gives_each_round_out_when_it_had_come() -> None:
    one = record(step=0.1)
    play = Replay(one)
    assert play.advance(0.05) == ()
    assert play.advance(0.06) == one.beats[:1]
    assert play.advance(0.2) == one.beats[1:3]
    assert not play.done
    assert play.finish() == one.beats[3:]
    assert play.done and play.position == one.seconds
    play.restart()
    assert (play.position, play.given) == (0.0, 0)


def test_two_records_tell_what_was_set_differently_and_where_the_texts_part() -> None:
    a = record("one two three four five six")
    b = slowly(record("one two three four FIVE six", gamma=3))
    rows = {row.name: (row.a, row.b) for row in compare.differing(a, b)}
    assert rows == {"γ, proposals a round": ("4", "3"), "settings changed on the way": ("never", "once")}
    found = compare.parting(a, b)
    assert (found.same, found.token, found.a[:4], found.b[:4]) == (False, 5, "five", "FIVE")
    assert "19 characters and part at token 5, round 3" in found.sentence
    assert compare.parting(a, a).same
    assert "Sampling was on" in compare.why_texts_differ(a, b)
    numbers = {
        x.name: (x.text, y.text, over) for x, y, over in compare.side_by_side(a, record("one two", step=0.4))
    }
    assert numbers["tokens"] == ("6", "2", "0.33×")
    assert numbers["first token"] == ("0.10 s", "0.40 s", "4.00×")


def test_curves_come_from_the_rounds() -> None:
    one = record("a b c d e f", step=0.5)
    assert list(compare.tokens_over_time(one)) == [(0, 0), (0.5, 2), (1.0, 4), (1.5, 6)]
    assert list(compare.accepted_means(one)) == [(1, 1), (2, 1), (3, 1)]
    for largest in (1e-6, 0.3, 1, 7, 99, 4096, 1e7):
        marks = ticks(largest)
        assert marks[0] == 0 and marks[-1] >= largest * 0.999 and 2 <= len(marks) <= 7


def test_the_table_has_a_row_a_round_and_no_text() -> None:
    one = record(f"=cmd() {HOSTILE.replace(' ', '')} x y")
    one = replace(
        one, beats=(replace(one.beats[0], round=replace(one.beats[0].round, drafter="=1+1")), *one.beats[1:])
    )
    rows = list(csv.DictReader(io.StringIO(as_csv(one))))
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == len(one.beats)
    assert rows[-1]["tokens"] == "4" and rows[0]["prompt_read"] == "9" and rows[1]["recovered"] == "1"
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())


def test_the_exported_page_escapes_everything_and_runs_nothing() -> None:
    one = record()
    head = replace(
        one.head, pair=replace(one.head.pair, target=HOSTILE, draft=HOSTILE), system=HOSTILE, settings={"gamma": 4, HOSTILE: HOSTILE},
        messages=(replace(one.head.messages[0], role=HOSTILE, content=HOSTILE),), hardware={"system": HOSTILE},
    )  # fmt: skip
    beats = (beat(0, (HOSTILE, HOSTILE), 0.1, turned_down=HOSTILE), *one.beats[1:])
    page = as_html([replace(one, head=head, beats=beats, tail=HOSTILE, note=HOSTILE), record()])
    assert "<img" not in page and "<script" not in page and 'onerror="' not in page
    assert page.count("</style>") == 1
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write(tmp_path / "a.jsonl", [record("an earlier reply"), record()])
    return tmp_path / "a.jsonl"


def run(*arguments: object) -> int:
    return replay_command.main([str(argument) for argument in arguments])


def test_the_terminal_replays_and_exports(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = saved.with_name("b.jsonl")
    write(other, [record("The keeper had slept", gamma=0)])
    assert (
        run(
            saved,
            "--speed",
            0,
            "--csv",
            saved.with_name("t.csv"),
            "--html",
            saved.with_name("p.html"),
            "--compare",
            other,
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert out.startswith("The keeper had not slept for two days . \n")
    assert "9 tokens · 0.5 s" in err and "finished" in err
    assert "γ, proposals a round" in out and "part at token 4" in out
    assert saved.with_name("t.csv").read_text(encoding="utf-8").startswith("round,at_s,gamma")
    assert "Two replies compared" in saved.with_name("p.html").read_text(encoding="utf-8")
    assert run(saved, "--speed", 0, "--reply", 1) == 0
    assert capsys.readouterr().out == "an earlier reply \n"


def test_the_terminal_keeps_the_recorded_pace(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waited: list[float] = []
    replay_command.play(record(step=10.0), 2.0, waited.append)
    assert len(waited) == 5
    assert waited[-1] == pytest.approx(
        25, abs=1
    )  # nothing was really slept, so the wait is for all five rounds


def test_a_terminal_is_not_told_what_it_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    replay_command.play(record(HOSTILE), 0, lambda _: None)
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl"], "does not exist"),
        (["{saved}", "--speed", "-1"], "--speed is -1"),
        (["{saved}", "--reply", "3"], "the file holds 2"),
        (["{saved}", "--speed", "0", "--csv", "/nowhere/at/all.csv"], "there is no such folder"),
    ],
)
def test_the_terminal_tells_what_is_wrong(
    saved: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(*(argument.replace("{saved}", str(saved)) for argument in arguments)) == 1
    assert said in capsys.readouterr().err


def test_a_replay_needs_no_torch(saved: Path) -> None:
    script = (
        "import sys; sys.argv = ['specchat', 'replay', sys.argv[1], '--speed', '0']\n"
        "import runpy\n"
        "try: runpy.run_module('specchat', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, [m for m in ('torch', 'transformers', 'gradio') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(saved)], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )  # fmt: skip
    assert "The keeper" in found.stdout
    assert found.stdout.rstrip().endswith("0 []")


def test_generate_records_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.tiny import save_tiny, tiny_model

    target, file = save_tiny(tmp_path / "target", tiny_model("llama")), tmp_path / "reply.jsonl"
    common = [
        "generate",
        "hello",
        "--target",
        str(target),
        "--draft",
        "self",
        "--context",
        "256",
        "--seed",
        "3",
    ]
    assert cli.main([*common, "--max-new-tokens", "12", "--record", str(file)]) == 0
    out, err = capsys.readouterr()
    one = read(file)
    assert one.text == out[: len(one.text)]
    assert one.head.settings["gamma"] == 3 and flat(one.head.settings)["sampling.seed"] == 3
    assert cli.main(["replay", str(file), "--speed", "0"]) == 0
    again, line = capsys.readouterr()
    assert replay_command.harmless(out) == again
    assert line.strip() in err
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0])["contains"]


def test_a_record_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "hello", "--target", "/nowhere", "--record", "/nowhere/at/all.jsonl"]) == 1
    assert "no such folder" in capsys.readouterr().err


def test_every_reply_of_a_conversation_can_be_in_one_file() -> None:
    both = [record("first"), slowly(record())]
    assert read_all(as_bytes(both)) == tuple(both)
