"""The page: header, settings sidebar, tabs. `build` returns it with what `launch` has to be told."""

from __future__ import annotations

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read by Gradio when the first Blocks is made

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape

import gradio as gr
from starlette.middleware import Middleware

from specchat.decode.engine import Settings
from specchat.ui import sidebar, theme
from specchat.ui.chat_parts import Updates
from specchat.ui.chat_tab import ChatTab
from specchat.ui.desk import Desk, Options
from specchat.ui.doctor_tab import DoctorTab
from specchat.ui.feed import Feed
from specchat.ui.models_tab import ModelsTab
from specchat.ui.proof_tab import ProofTab
from specchat.ui.race_tab import RaceTab
from specchat.ui.records_tab import RecordsTab
from specchat.ui.session import Session
from specchat.ui.sidebar import Controls
from specchat.ui.tab import Tab
from specchat.ui.ticks import clock
from specchat.ui.tune_tab import TuneTab
from specchat.worker import Worker

TABS: Mapping[str, type[Tab]] = {
    "Race": RaceTab,
    "Tune": TuneTab,
    "Doctor": DoctorTab,
    "Proof": ProofTab,
    "Records": RecordsTab,
    "Models": ModelsTab,
}
"""Behind the chat, in this order."""

POLL_S, PROGRESS_S = 0.1, 0.5
"""Seconds between two looks of Gradio for events that wait, and for progress bars, which are not used here."""

LAST_ANSWERS_S = 1
"""Seconds that answers under way may take when the program is told to end."""

BRING_KEY = "() => { try { return sessionStorage.getItem('specchat') || '' } catch { return '' } }"
"""The key of the tab's conversation, if it had one before the page was loaded again. (Storage may be forbidden.)"""

KEEP_KEY = "(key) => { try { sessionStorage.setItem('specchat', key) } catch { } }"


@dataclass(frozen=True, slots=True)
class Page:
    """The page and what Gradio's `launch` has to be told about it."""

    blocks: gr.Blocks
    launch_kwargs: Mapping[str, object]
    desk: Desk
    chat: ChatTab

    def start(self, host: str = "127.0.0.1", port: int | None = None, open_browser: bool = False) -> str:
        """Serves from a background thread; returns the address. Raises OSError when the port is taken."""
        _, url, _ = self.blocks.launch(
            server_name=host, server_port=port, inbrowser=open_browser,
            prevent_thread_lock=True, quiet=True, **self.launch_kwargs,
        )  # fmt: skip
        if self.blocks.server is not None:
            # An open tab holds a connection for as long as it is open, and Ctrl-C would wait for it.
            self.blocks.server.config.timeout_graceful_shutdown = LAST_ANSWERS_S
        return str(url)

    def wait(self, say: Callable[[str], None] = print) -> None:
        """Until interrupted; then the server is closed."""
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            say("Stopping.")
        # uvicorn tells at length of each connection it cuts off, and every open tab has one.
        logging.getLogger("uvicorn.error").disabled = True
        with suppress(KeyboardInterrupt):
            self.blocks.close(verbose=False)


def build(worker: Worker, settings: Settings | None = None, options: Options | None = None) -> Page:
    """The page over a worker that may still be loading.

    settings: what every new tab begins with. Import this module before gradio, or set
    GRADIO_ANALYTICS_ENABLED=False yourself.
    """
    options = options or Options()
    desk = Desk(worker, settings or Settings(), options)
    with gr.Blocks(title=options.title, analytics_enabled=False, fill_width=True) as blocks:
        with gr.Sidebar(open=True, width=300, elem_id="sc-settings"):
            controls = sidebar.build(desk.settings, options.system)
        header = gr.HTML(
            _header(options.title, desk.pair_line()),
            js_on_load=None,
            apply_default_css=False,
            elem_id="sc-header",
        )
        with gr.Tabs(elem_id="sc-tabs"):
            with gr.Tab("Chat", id="chat", elem_id="sc-tab-chat"):
                chat = ChatTab(desk)
                chat.wire()
            for name, kind in TABS.items():
                with gr.Tab(name, id=name.lower(), elem_id=f"sc-tab-{name.lower()}"):
                    kind(desk, controls).wire()
        _wire_settings(desk, controls)
        _wire_idle(blocks, desk, chat, header, controls)
        blocks.unload(_closer(desk))
    blocks.queue(default_concurrency_limit=None, api_open=False)
    _poll_calmly(blocks)
    _wait_unseen(blocks, chat.new)
    return Page(blocks, theme.launch_kwargs(Middleware(Feed, follow=chat.follow)), desk, chat)


def _poll_calmly(blocks: gr.Blocks) -> None:
    """Gradio looks a thousand times a second whether an event waits, and takes the interpreter from the engine each time.

    Twelve per cent of all time went there, measured while a reply was written. What is queued (measurements, the
    loading of a pair, the player of records; not a reply) now begins up to 0.1 s later.
    """
    blocks._queue.sleep_when_free = POLL_S
    blocks._queue.progress_update_sleep_when_free = PROGRESS_S


def _wait_unseen(blocks: gr.Blocks, tells: gr.Button) -> None:
    """Gradio tells every output of an event that it waits, and each counts its seconds sixty times a second, hidden or
    not, some for ever. Nothing here shows that, so it is told to a component that shows none: a button.
    """
    for event in blocks.fns.values():
        event.show_progress_on = [tells]


def _header(title: str, pair_line: str) -> str:
    logo = (theme.ASSETS / "logo.svg").read_text(encoding="utf-8")
    return f'<header class="sc-head">{logo}<h1>{escape(title)}</h1>{pair_line}</header>'


def _closer(desk: Desk) -> Callable[[gr.Request], None]:
    def close(request: gr.Request) -> None:
        desk.sessions.close(request.session_hash)

    return close


def _wire_settings(desk: Desk, controls: Controls) -> None:
    """Every change of a control becomes the session's settings at once; the engine reads them each round."""

    def apply(request: gr.Request, *values: object) -> None:
        session = desk.sessions.of(request.session_hash)
        session.values = values
        now, session.system = sidebar.read(values, desk.settings)
        session.live.set(now)

    gr.on(
        [control.change for control in controls.all()], apply, inputs=controls.all(), outputs=None,
        queue=False, show_progress="hidden", trigger_mode="always_last", api_visibility="private",
    )  # fmt: skip


def _wire_idle(blocks: gr.Blocks, desk: Desk, chat: ChatTab, header: gr.HTML, controls: Controls) -> None:
    """At every tick: is the pair loaded, who is being served, how full is the memory. At first: was it here before?"""

    def look(request: gr.Request) -> Updates:
        return news(desk.sessions.of(request.session_hash)) or {header: gr.skip()}

    def news(session: Session) -> Updates:
        updates = chat.idle(session)
        pair = desk.worker.pair
        if pair is not None and session.knows_pair != pair.number:
            session.knows_pair = pair.number
            updates[header] = _header(desk.options.title, desk.pair_line())
            updates |= chat.loaded(session) | _drafters(session, pair.drafters, controls)
        elif pair is not None and pair.drafters and session.muted:
            # One look later: the change of this box brings the drafter's value along, which must be a new choice.
            session.live.set(replace(session.live.get(), gamma=session.muted))
            session.muted, updates[controls.on] = 0, gr.update(value=True)
        return updates

    def load(key: str, request: gr.Request) -> Updates:
        key, session = desk.sessions.resume(request.session_hash, str(key or ""))
        session.as_loaded()
        values = dict(zip(controls.all(), session.values, strict=False))
        return {kept: key, **values, **chat.resumed(session), **news(session)}

    kept = gr.Textbox(visible=False, elem_id="sc-key")
    quiet = {"show_progress": "hidden", "queue": False, "api_visibility": "private"}
    outputs = [*chat.idle_outputs, header, controls.on, controls.drafter]
    clock().select(look, outputs=outputs, **quiet)
    shown = [*chat.resumed_outputs, *controls.all(), header, kept]
    loaded = blocks.load(load, inputs=[kept], outputs=shown, js=BRING_KEY, **quiet)
    loaded.then(None, inputs=[kept], js=KEEP_KEY, show_progress="hidden", api_visibility="private")


def _drafters(session: Session, names: tuple[str, ...], controls: Controls) -> Updates:
    """The choice of drafters this pair has; one it does not have becomes its first. Without any, speculation is off,
    until a pair comes that has some."""
    now = session.live.get()
    if not names:
        session.muted = session.muted or now.gamma
        session.live.set(replace(now, gamma=0))
        off = gr.update(value=False, interactive=False)
        return {
            controls.on: off,
            controls.drafter: gr.update(choices=[("none for this target", "")], value=""),
        }
    chosen = now.drafter if now.drafter in names else names[0]
    session.live.set(replace(now, drafter=chosen))
    choices = sidebar.drafter_choices(names)
    return {
        controls.on: gr.update(interactive=True),
        controls.drafter: gr.update(choices=choices, value=chosen, interactive=len(names) > 1),
    }
