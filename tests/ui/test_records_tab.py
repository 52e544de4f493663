"""Saving a reply and replaying, comparing and exporting it in a real Chromium, without asking a model again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.decode.events import Finished
from specchat.lab.record_parts import Said
from specchat.lab.record_read import read, read_all
from specchat.lab.record_write import as_bytes, write
from specchat.ui import records_files, records_view
from specchat.ui.records_deck import Deck
from specchat.ui.records_files import offer, uploaded
from tests.lab.records import HOSTILE, record
from tests.ui.fake_worker import STORY, FakePair, fake_worker
from tests.ui.pages import Served, ask, eventually, slide

DONE = "#sc-records-screen [data-testid=stats]"


def records_tab(page) -> None:
    page.get_by_role("tab", name="Records").click()
    page.wait_for_selector("#sc-records-file", state="visible")
    # Gradio mounts a tab anew when it is chosen, and drops an answer that arrives meanwhile; nobody clicks so soon.
    page.wait_for_timeout(500)


def upload(page, button: str, path) -> None:
    with page.expect_file_chooser() as chooser:
        page.click(button)
    chooser.value.set_files(path)


def download(page, button: str, path):
    with page.expect_download() as download:
        page.click(button)
    download.value.save_as(path)
    return download.value.suggested_filename


@pytest.mark.browser
def test_a_saved_reply_is_replayed_with_the_chat_s_text_and_numbers(served, open_page, tmp_path, shot):
    page = open_page(served.url)
    assert page.locator("#sc-save").is_disabled()
    line = ask(page, "a fast story")
    name = download(page, "#sc-save", tmp_path / "one.jsonl")
    assert name.startswith("specchat-") and name.endswith(".jsonl")
    eventually(
        lambda: "conversation's text" in page.locator(".sc-status").first.inner_text(), "what the file holds"
    )
    assert read(tmp_path / "one.jsonl").text == STORY

    records_tab(page)
    upload(page, "#sc-records-file", tmp_path / "one.jsonl")
    assert page.locator(DONE).inner_text() == line
    page.click("#sc-records-restart")
    page.wait_for_selector("#sc-records-screen .sc-writing")
    page.wait_for_selector(DONE)
    assert page.locator(DONE).inner_text() == line
    assert "turning towards the rocks" in page.locator("#sc-records-screen").inner_text()
    assert page.locator("#sc-records-side .sc-keys dd").nth(3).inner_text() == str(
        len(read(tmp_path / "one.jsonl").beats)
    )
    page.check("#sc-records-lens input")
    page.check("#sc-records-rejected input")
    page.wait_for_selector("#sc-records-screen s.sc-x")
    texts = page.locator("#sc-records-screen i.sc-t").all_text_contents()
    assert "".join(texts).replace("↵", "") == STORY
    shot(page, "records_replayed")


@pytest.mark.browser
def test_pause_holds_and_play_goes_on(served, open_page, tmp_path):
    write(tmp_path / "long.jsonl", [record(step=5.0)])
    page = open_page(served.url)
    records_tab(page)
    upload(page, "#sc-records-file", tmp_path / "long.jsonl")
    page.wait_for_selector(DONE)
    page.locator("#sc-records-speed label", has_text="4×").click()
    page.click("#sc-records-start")
    page.wait_for_selector("#sc-records-pause:not([disabled])")
    page.wait_for_selector("#sc-records-screen:has-text('The keeper')")
    page.click("#sc-records-pause")
    page.wait_for_selector("#sc-records-start:not([disabled])")
    held = page.locator(".sc-records-clock").inner_text()
    assert page.locator(DONE).count() == 0
    page.wait_for_timeout(300)
    assert page.locator(".sc-records-clock").inner_text() == held
    page.click("#sc-records-start")
    page.wait_for_selector(DONE)
    assert "round 5 of 5" in page.locator(".sc-records-clock").inner_text()


@pytest.mark.browser
def test_what_is_no_record_is_told_and_a_cut_one_is_shown_as_far_as_it_goes(served, open_page, tmp_path):
    (tmp_path / "photo.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    (tmp_path / "cut.jsonl").write_bytes(as_bytes([record()])[:-400])
    page = open_page(served.url)
    records_tab(page)
    page.click("#sc-records-last")
    page.wait_for_selector(".sc-error:has-text('no finished reply yet')")
    upload(page, "#sc-records-file", tmp_path / "photo.jsonl")
    page.wait_for_selector(".sc-error:has-text('not a SpecChat record')")
    upload(page, "#sc-records-file", tmp_path / "cut.jsonl")
    page.wait_for_selector(".sc-note:has-text('cut off after round')")
    assert "the record is cut off" in page.locator(DONE).inner_text()


@pytest.mark.browser
def test_two_records_are_compared_and_the_export_runs_nothing(served, open_page, browser, tmp_path, shot):
    page = open_page(served.url)
    ask(page, "fast hostile")
    records_tab(page)
    page.click("#sc-records-last")
    page.wait_for_selector(DONE)
    page.get_by_role("tab", name="Chat").click()
    slide(page, "sc-gamma", 2)
    ask(page, "fast hostile", 2)
    assert page.locator("#sc-save-all").is_visible()
    download(page, "#sc-save-all", tmp_path / "all.jsonl")
    assert len(read_all(tmp_path / "all.jsonl")) == 2
    records_tab(page)
    page.click("#sc-records-other-last")
    row = page.locator(".sc-records-differing tr", has_text="γ, proposals a round")
    row.wait_for()
    assert row.locator("td").all_inner_texts() == ["4", "2"]
    assert page.locator(".sc-records-figure polyline").count() == 4
    assert page.evaluate("window.pwned") is None
    shot(page, "records_compared")
    download(page, "#sc-records-html", tmp_path / "both.html")

    context = browser.new_context()
    alone, asked = context.new_page(), []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto((tmp_path / "both.html").as_uri())
    assert alone.evaluate("window.pwned") is None
    assert alone.locator(".sc-lens .sc-t").count() > 50
    assert "<img src=x onerror" in alone.locator(".sc-lens").first.inner_text().replace("\n", "")
    assert asked == [(tmp_path / "both.html").as_uri()]
    context.close()


@pytest.mark.browser
def test_records_are_replayed_while_no_pair_could_be_loaded(open_page, behind, tmp_path):
    write(tmp_path / "one.jsonl", [record("first text"), record()])
    pair = FakePair()
    one = behind.enter_context(closing(Served(fake_worker(pair, fails="There is no such model."), pair)))
    page = open_page(one.url)
    records_tab(page)
    upload(page, "#sc-records-file", tmp_path / "one.jsonl")
    page.wait_for_selector(f"{DONE}:has-text('9 tokens')")
    assert "holds 2 replies" in page.locator("#sc-records-said-line").inner_text()
    page.click("#sc-records-start")
    page.wait_for_selector("#sc-records-screen .sc-writing")
    page.wait_for_selector(DONE)


def test_an_upload_does_not_stay_on_the_machine(tmp_path):
    path = tmp_path / "one.jsonl"
    write(path, [record()])
    assert uploaded(str(path)) == (record(),)
    assert not path.exists()
    path.write_bytes(b"what is this")
    with pytest.raises(ValueError, match="not a SpecChat record"):
        uploaded(str(path))
    assert not path.exists()
    with pytest.raises(ValueError, match="No file"):
        uploaded(None)


def test_a_reply_too_long_for_the_page_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records_files, "MOST_TOKENS", 8)
    path = tmp_path / "one.jsonl"
    write(path, [record()])
    with pytest.raises(ValueError, match="A reply of 9 tokens is too long for the page"):
        uploaded(str(path))


def test_nothing_out_of_a_record_is_taken_for_html():
    one = record(HOSTILE)
    head = replace(
        one.head, pair=replace(one.head.pair, target=HOSTILE, draft=HOSTILE, plain_step_source=HOSTILE), system=HOSTILE,
        settings={"gamma": 4, HOSTILE: HOSTILE}, messages=(Said(HOSTILE, HOSTILE), Said("user", HOSTILE)),
        hardware={"system": HOSTILE},
    )  # fmt: skip
    deck = Deck()
    deck.take((replace(one, head=head, note=HOSTILE, finished=Finished("error", 9, 1.0, 0, 0, HOSTILE)),))
    deck.other = record("another")
    for lens in (False, True):
        deck.look(lens, lens)
        shown = (
            "".join(records_view.screen(deck).values()) + records_view.facts(deck) + records_view.panel(deck)
        )
        shown += records_view.below(deck) + records_view.clock(deck) + records_view.said(HOSTILE)
        assert "<img" not in shown and "<script" not in shown and 'onerror="' not in shown


def test_files_for_download_are_private_and_do_not_pile_up():
    paths = [Path(offer(b"text")) for _ in range(40)]
    assert paths[-1].read_bytes() == b"text"
    assert sum(path.exists() for path in paths) <= 30
    assert paths[-1].parent.stat().st_mode & 0o077 == 0
    assert paths[-1].parent.parent.stat().st_mode & 0o077 == 0


def test_an_older_loop_ends_when_another_begins_to_play():
    deck = Deck()
    deck.take((record(),))
    assert deck.reply.done and not deck.playing
    first = deck.play()
    assert deck.plays(first)
    second = deck.play()
    assert deck.plays(second) and not deck.plays(first)
    deck.finish()
    assert not deck.plays(second)
    assert deck.reply.text == record().text
