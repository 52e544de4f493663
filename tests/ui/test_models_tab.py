"""The Models tab in a browser, over a real worker and tiny real checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch

from specchat import ui
from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.model.catalog import PairOptions
from specchat.pair import Pair, open_pair
from specchat.worker import Task, Worker
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer
from tests.ui.pages import ask, bot, eventually

SETTINGS = Settings(3, Sampling(temperature=0.0), "chain", 8)
HOSTILE = "second <img src=x onerror=window.pwned=1> model"
LONG = 90_000
"""Milliseconds for what imports the models' libraries in another process on a busy machine."""


class Place:
    """A page over a real worker, and the folders of a few tiny models."""

    def __init__(self, folder: Path, start: PairOptions) -> None:
        self.folder = folder
        self.worker = Worker(lambda progress: open_pair(start, progress))
        self.page = ui.build(self.worker, SETTINGS, ui.Options(pair=start))
        self.url = self.page.start()

    def close(self) -> None:
        self.page.blocks.close()
        self.worker.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("models")
    save_tiny(base / "first")
    save_tiny(base / HOSTILE, tiny_model("qwen2", seed=3))
    save_tiny(base / "foreign", tiny_model(vocab=300), tiny_tokenizer(("foo",)))
    ill = tiny_model()
    with torch.no_grad():
        ill.lm_head.weight[3] = float("nan")
    save_tiny(base / "ill", ill)
    return base


@pytest.fixture(scope="module")
def place(folder: Path) -> Iterator[Place]:
    one = Place(folder, PairOptions(str(folder / "first"), "shallow", context=256))
    assert one.worker.wait_ready(60)
    yield one
    one.close()


def text(page, name: str, value: object) -> None:
    page.locator(f"#sc-models-{name} input, #sc-models-{name} textarea").first.fill(str(value))


def value(page, name: str) -> str:
    return page.locator(f"#sc-models-{name} input, #sc-models-{name} textarea").first.input_value()


def draft(page, kind: str) -> None:
    page.click("#sc-models-kind input")
    page.get_by_role("option", name=kind).click()


def models(page) -> None:
    page.get_by_role("tab", name="Models").click()
    page.wait_for_selector("#sc-models-target")


def chat(page) -> None:
    page.get_by_role("tab", name="Chat").click()


def going(page, said: str) -> str:
    """Waits for a sentence about loading."""
    line = page.locator("#sc-models-going", has_text=said)
    line.wait_for(timeout=LONG)
    return line.inner_text()


def found(page, said: str) -> str:
    """Waits for a sentence about the choice."""
    line = page.locator("#sc-models-found", has_text=said)
    line.wait_for(timeout=LONG)
    return line.inner_text()


def test_another_pair_is_judged_loaded_and_talked_to_and_the_conversation_is_kept(
    place: Place, open_page: Callable[..., object]
) -> None:
    page = open_page(place.url)
    ask(page, "hello")
    before = bot(page)
    models(page)
    page.locator("#sc-models-pair", has_text="float").wait_for()
    shown = page.inner_text("#sc-models-pair")
    assert all(
        word in shown for word in ("first", str(place.folder / "first"), "256 tokens", "275 token ids", "ms")
    )
    old = place.worker.pair

    # Two that do not belong together are refused before anything happens to the pair in use.
    text(page, "target", place.folder / "foreign")
    draft(page, "A second model")
    text(page, "typed", place.folder / "first")
    page.click("#sc-models-load")
    found(page, "id 275 is 'foo' in the target and nothing in the draft")
    page.locator("#sc-models-refusal", has_text="Not loaded").wait_for(timeout=LONG)
    assert place.worker.pair is old

    text(page, "target", place.folder / HOSTILE)
    draft(page, "N-grams of the text")
    assert HOSTILE in found(page, "fits, together and in memory")
    page.click("#sc-models-load")
    assert HOSTILE in going(page, "Loaded:")
    page.locator("#sc-header b", has_text=HOSTILE).wait_for()
    assert str(place.folder / HOSTILE) in page.inner_text("#sc-models-pair")
    assert page.locator("#sc-models img, #sc-header img").count() == 0
    assert page.evaluate("window.pwned") is None
    eventually(lambda: page.input_value("#sc-drafter input").startswith("n-grams of"), "the drafters follow")

    chat(page)
    assert bot(page) == before, "the conversation is kept"
    ask(page, "and now?", 2)
    assert bot(page, 0) == before
    models(page)

    # Without a draft speculation is off; with the next one it is as it was.
    draft(page, "None: plain")
    page.click("#sc-models-load")
    eventually(lambda: page.locator("#sc-on input").is_disabled(), "speculation is off", 60)
    draft(page, "The target itself")
    page.click("#sc-models-load")
    eventually(
        lambda: page.locator("#sc-on input").is_enabled() and page.locator("#sc-on input").is_checked(),
        "on again",
        60,
    )


def test_a_pair_that_only_loading_shows_to_be_ill_brings_the_old_one_back(
    place: Place, open_page: Callable[..., object]
) -> None:
    page = open_page(place.url)
    models(page)
    text(page, "target", place.folder / "ill")
    draft(page, "None: plain")
    page.click("#sc-models-load")
    told = going(page, "could not be loaded")
    assert "nan" in told and "The pair from before is back." in told
    assert value(page, "target") == str(place.folder / "ill"), "the choice stays, to be corrected"
    chat(page)
    ask(page, "hello")


def test_a_load_waits_for_the_reply_in_flight_and_can_be_taken_back(
    place: Place, open_page: Callable[..., object]
) -> None:
    page, old = open_page(place.url), place.worker.pair
    models(page)
    go = threading.Event()
    place.worker.submit(Task(lambda *_: go.wait(120)))
    try:
        page.click("#sc-models-load")
        going(page, "as soon as what is being measured has ended")
        page.click("#sc-models-withdraw")
        going(page, "taken back")
    finally:
        go.set()
    assert place.worker.pair is old


def test_after_a_failed_start_the_tab_is_the_way_out(
    folder: Path, open_page: Callable[..., object], behind: ExitStack
) -> None:
    one = behind.enter_context(
        closing(Place(folder, PairOptions(str(folder / "mislaid"), "ngram", context=256)))
    )
    page = open_page(one.url)
    models(page)
    page.locator("#sc-models-pair", has_text="mislaid does not exist").wait_for(timeout=LONG)
    text(page, "target", folder / "first")
    page.click("#sc-models-load")
    going(page, "Loaded:")
    pair = one.worker.pair
    assert isinstance(pair, Pair) and pair.target_name == "first"
    chat(page)
    ask(page, "hello")
