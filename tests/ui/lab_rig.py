"""A tab of the lab without a browser: its handlers called as Gradio would, over a real worker and a tiny real pair."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import gradio as gr

from specchat import ui
from specchat.decode.engine import Settings
from specchat.ui.chat_parts import Updates
from specchat.ui.chat_tab import ChatTab
from specchat.ui.desk import Desk, Options
from specchat.ui.live import Seen
from specchat.ui.sidebar import build as build_sidebar
from specchat.ui.tab import Tab
from specchat.worker import Worker
from tests.ui.fake_worker import FakePair, answer_from_scripts, fake_worker
from tests.worker.jobs import pair_of


def tab(key: str = "one") -> gr.Request:
    """A request of the browser tab of this name."""
    return SimpleNamespace(session_hash=key)  # type: ignore[return-value]


@contextmanager
def page_over(pair: FakePair) -> Iterator[ui.Page]:
    """A page without a browser, whose worker answers from the scripts."""
    back, worker = answer_from_scripts(), fake_worker(pair)
    assert worker.wait_ready(10)
    yield ui.build(worker)
    worker.close()
    back()


def following(chat: ChatTab, who: gr.Request) -> Generator[Seen, None, None]:
    """What the page of this tab is shown of the last reply that was begun, asked for with its ticket."""
    return chat.follow(chat.desk.sessions.of(who.session_hash).ticket)


def whole(chat: ChatTab, text: str, who: gr.Request) -> Updates:
    """A message sent and its reply followed to the end: what the page is told last."""
    chat.send(text, who)
    list(following(chat, who))
    return chat.end(who)


class TabRig:
    """kind: the tab's class; pair: None for a tiny one."""

    def __init__(self, kind: type[Tab], settings: Settings, pair=None) -> None:
        self.worker = Worker(lambda progress: pair or pair_of())
        assert self.worker.wait_ready(20)
        self.desk = Desk(self.worker, settings, Options())
        with gr.Blocks():
            self.tab = kind(self.desk, build_sidebar(settings, ""))

    def shown(self, updates: Iterator[dict]) -> dict[str, str]:
        """Everything to the end: the last status and board."""
        seen = {}
        for update in updates:
            for part in ("status", "board"):
                value = update.get(getattr(self.tab, part))
                if isinstance(value, str):
                    seen[part] = value
        return seen
