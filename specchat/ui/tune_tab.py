"""The Tune tab: a tuning run with its prediction, table, plots and recommendation; and the formula by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gradio as gr
from gradio.components import Component

from specchat.lab import tune_memory, tune_report, tune_start
from specchat.lab.tune import Outcome
from specchat.lab.tune_arguments import FULL, QUICK, QUICK_S
from specchat.lab.tune_identity import identity_of
from specchat.lab.tune_plan import Plan, built_in, own_prompts
from specchat.ui import tune_view
from specchat.ui.desk import Desk
from specchat.ui.session import Session
from specchat.ui.sidebar import Controls
from specchat.ui.tab import ahead, conduct, news, stop
from specchat.ui.ticks import clock
from specchat.ui.tune_apply import Advised, applied, set_by_it
from specchat.ui.tune_calculator import TuneCalculator
from specchat.worker import Ended, Event, Task

if TYPE_CHECKING:
    from specchat.pair import Pair


Updates = dict[Component, object]

NAME = "tune"
"""What the session's task is called."""

QUIET = {"show_progress": "hidden", "api_visibility": "private"}


class TuneTab:
    """Components of the tab and their handlers."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self._reports = tempfile.TemporaryDirectory(prefix="specchat-tune-", ignore_cleanup_errors=True)
        with gr.Column(elem_id="sc-tune"):
            _html(tune_view.HEAD)
            with gr.Row(elem_id="sc-tune-hint-row"):
                self.hint = _html("", "sc-tune-hint")
                self.take = gr.Button(
                    "Apply it", size="sm", visible=False, elem_id="sc-tune-take", min_width=90
                )
            self._build_choices()
            with gr.Row(elem_id="sc-tune-tools"):
                self.go = gr.Button("Run", variant="primary", size="sm", elem_id="sc-tune-run")
                self.halt = gr.Button("Stop", size="sm", interactive=False, elem_id="sc-tune-stop")
                self.resume = gr.Button("Resume", size="sm", visible=False, elem_id="sc-tune-resume")
                self.apply = gr.Button(
                    "Apply", variant="primary", size="sm", visible=False, elem_id="sc-tune-apply"
                )
                self.report = gr.DownloadButton("Report", size="sm", visible=False, elem_id="sc-tune-report")
            self.status = _html(
                tune_view.told(
                    f"Nothing measured yet. A quick run takes at most about {QUICK_S / 60:.0f} minutes, a full one up to "
                    "an hour on a CPU. Either leaves the chat as it is, but its next message is read again from the first "
                    "word."
                ),
                "sc-tune-status",
            )
            self.result = _html("", "sc-tune-result")
            self.calculator = TuneCalculator()
        self.advised = gr.State(None)
        """What Apply sets."""
        self.offered = gr.State(None)
        """The remembered recommendation."""
        self.seen = gr.State(None)
        """Pair, sampling and files at the last look."""

    def _build_choices(self) -> None:
        minutes = (
            f"quick ({QUICK['tokens']} tokens, 1 seed)",
            f"full ({FULL['tokens']} tokens, {FULL['seeds']} seeds)",
        )
        with gr.Row(elem_id="sc-tune-choices"):
            self.scope = gr.Radio(
                [(minutes[0], "quick"), (minutes[1], "full")], value="quick", label="Scope",
                elem_id="sc-tune-scope",
            )  # fmt: skip
            self.source = gr.Radio(
                [("built-in suite", "suite"), ("my own", "own")], value="suite", label="Prompts",
                elem_id="sc-tune-source",
            )  # fmt: skip
            self.every = gr.Checkbox(label="Every γ from 1 to 8", elem_id="sc-tune-every", container=False)
        self.own = gr.Textbox(
            label="One prompt a line, or separated by blank lines", lines=4, max_lines=12, visible=False,
            elem_id="sc-tune-own",
        )  # fmt: skip

    def wire(self) -> None:
        """Binds the handlers."""
        at_once = {**QUIET, "queue": False}
        measuring = {**QUIET, "concurrency_limit": None, "outputs": self._outputs()}
        self.go.click(self.run, inputs=[self.scope, self.source, self.own, self.every], **measuring)
        self.resume.click(self.again, **measuring)
        self.halt.click(self.stop, **at_once)
        self.source.change(_show_own, inputs=[self.source], outputs=[self.own], **at_once)
        applying = {**at_once, "outputs": [*set_by_it(self.controls), self.status]}
        self.apply.click(self.set, inputs=[self.advised], **applying)
        self.take.click(self.set, inputs=[self.offered], **applying)
        # A remembered recommendation: the pair or the sampling may be another by now.
        clock().select(
            self.look,
            inputs=[self.seen],
            outputs=[self.hint, self.take, self.offered, self.resume, self.seen],
            **at_once,
        )
        self.calculator.wire()

    def _outputs(self) -> list[Component]:
        return [self.go, self.halt, self.resume, self.apply, self.report, self.status, self.result, self.advised,
                self.calculator.probed, self.calculator.fill]  # fmt: skip

    # -- handlers that measure ----------------------------------------------------------------------

    def run(self, scope: str, source: str, text: str, every: bool, request: gr.Request) -> Iterator[Updates]:
        """A new run of what is chosen."""
        session = self.desk.sessions.of(request.session_hash)
        try:
            plan = self._plan(session, scope, source, text or "", bool(every))
        except ValueError as problem:
            yield {self.status: tune_view.told(str(problem), error=True)}
            return
        try:
            path: Path | None = tune_start.new_record(tune_start.folder())
        except OSError:
            path = None  # nothing is kept then, and Stop loses what was measured; the run itself works
        yield from self._measure(session, plan, path)

    def again(self, request: gr.Request) -> Iterator[Updates]:
        """Goes on with the newest unfinished run of this pair."""
        session, pair = self.desk.sessions.of(request.session_hash), self.desk.worker.pair
        found = None if pair is None else tune_start.unfinished(identity_of(pair), tune_start.folder())
        if found is None:
            yield {
                self.status: tune_view.told("There is no unfinished run of this pair."),
                self.resume: _hidden(),
            }
            return
        yield from self._measure(session, found[1], found[0])

    def _plan(self, session: Session, scope: str, source: str, text: str, every: bool) -> Plan:
        size, settings = QUICK if scope == "quick" else FULL, session.live.get()
        prompts = own_prompts(text) if source == "own" else built_in(scope == "quick")
        return Plan(
            prompts, size["tokens"], tuple(range(size["seeds"])), replace(settings.sampling, seed=None),
            settings.drafter, exhaustive=every, budget_s=QUICK_S if scope == "quick" else None,
        )  # fmt: skip

    def _measure(self, session: Session, plan: Plan, path: Path | None) -> Iterator[Updates]:
        measured, last = 0, None

        def work(pair: Pair, cancelled: Callable[[], bool], put: Callable[[object], None]) -> Outcome:
            nonlocal measured
            measured = pair.number
            return tune_start.tune(pair, plan, path, cancelled, put)

        def underway(batch: list[Event]) -> Updates:
            nonlocal last
            outcomes = [value for value in news(batch) if isinstance(value, Outcome)]
            last = outcomes[-1] if outcomes else last
            return self._underway(batch, outcomes[-1] if outcomes else None)

        busy = "A run is on its way in this tab: wait for it, or stop it."
        yield from conduct(
            self.desk, session, NAME, Task(work, "Tuning"),
            opening=self._opening,
            underway=underway,
            closing=lambda end: self._closing(session, end, last, path, measured),
            refused={self.status: tune_view.told(busy)},
        )  # fmt: skip

    def _opening(self) -> Updates:
        return {
            self.go: gr.update(interactive=False),
            self.halt: gr.update(interactive=True),
            **{part: _hidden() for part in (self.resume, self.apply, self.report)},
            self.status: tune_view.told("Starting"),
            self.result: "",
        }

    def _underway(self, batch: list[Event], outcome: Outcome | None) -> Updates:
        waits = ahead(batch)
        if outcome is not None:
            return {self.status: tune_view.running(outcome), self.result: tune_view.result(outcome)}
        if waits is not None:
            sentence = "Waiting for what is being written first." if waits else "Waiting for the models."
            return {self.status: tune_view.told(sentence)}
        return {self.status: gr.skip()}

    def _closing(
        self, session: Session, end: Ended | None, last: Outcome | None, path: Path | None, number: int
    ) -> Updates:
        """number: that of the pair that was measured."""
        outcome = end.value if end is not None and isinstance(end.value, Outcome) else last
        problem = end.problem if end is not None else ""
        complete = outcome is not None and outcome.complete
        kept = outcome is not None and outcome.facts.get("remembered") is True
        said = problem or tune_view.ending(complete, path is not None, last is not None, kept)
        updates: Updates = {
            self.go: gr.update(interactive=True),
            self.halt: gr.update(interactive=False),
            self.resume: gr.update(visible=path is not None and not complete and outcome is not None),
            self.status: tune_view.told(said, error=bool(problem)),
        }
        if outcome is None:
            return updates
        updates |= {self.result: tune_view.result(outcome), self.report: self._report(session, outcome)}
        if outcome.advice is not None:
            updates |= {
                self.advised: Advised(outcome.advice.gamma, outcome.advice.drafter, number),
                self.apply: gr.update(visible=True, value=tune_view.apply_words(outcome.advice.gamma)),
            }
        if outcome.prediction is not None and outcome.prediction.judging:
            found, at = outcome.prediction, outcome.gamma
            updates |= self.calculator.offer(found.alpha, at, found.c, found.v(at))
        return updates

    def _report(self, session: Session, outcome: Outcome) -> object:
        """The run as one HTML file to download; no button when it cannot be written."""
        folder = Path(self._reports.name) / f"{id(session):x}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "specchat-tune.html"
            path.write_text(tune_report.page(outcome), encoding="utf-8")
        except OSError:
            return _hidden()
        return gr.update(value=str(path), visible=True)

    # -- handlers that do not ---------------------------------------------------------------------

    def stop(self, request: gr.Request) -> None:
        """Ends the run within a round; what was measured stays."""
        stop(self.desk.sessions.of(request.session_hash), NAME)

    def set(self, advised: Advised | None) -> Updates:
        """Puts a recommendation into the sidebar, whose own handlers then put it in force."""
        updates, said = applied(advised, self.desk.worker.pair, self.controls)
        return {**updates, self.status: said}

    def look(self, seen: object, request: gr.Request) -> Updates:
        """What is known of this pair with this sampling from earlier runs; nothing when nothing changed."""
        session, pair = self.desk.sessions.of(request.session_hash), self.desk.worker.pair
        if pair is None or NAME in session.tasks:
            return {self.seen: gr.skip()}
        sampling = replace(session.live.get().sampling, seed=None)
        now = (pair.number, str(sampling), tune_memory.changed_at())
        before = () if seen is None else tuple(seen)  # type: ignore[arg-type]
        if before == now:
            return {self.seen: gr.skip()}
        found = tune_memory.remembered(pair, sampling)
        updates: Updates = {
            self.seen: now,
            self.hint: tune_view.hint(found),
            self.take: gr.update(
                visible=found is not None, value=tune_view.apply_words(found.gamma) if found else "Apply it"
            ),
            self.offered: None if found is None else Advised(found.gamma, found.drafter, pair.number),
        }
        if before[:1] != now[:1]:
            waiting = tune_start.unfinished(identity_of(pair), tune_start.folder())
            updates[self.resume] = gr.update(visible=waiting is not None)
        return updates


def _html(value: str, elem_id: str | None = None) -> gr.HTML:
    return gr.HTML(value, js_on_load=None, apply_default_css=False, elem_id=elem_id)


def _hidden() -> object:
    return gr.update(visible=False)


def _show_own(source: str) -> object:
    return gr.update(visible=source == "own")
