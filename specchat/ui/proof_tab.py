"""The Proof tab: that speculation changes nothing, tested on the pair in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import gradio as gr
from gradio.components import Component

from specchat.chat.conversation import is_blank, well_formed
from specchat.lab import suite
from specchat.lab.proof import prove
from specchat.lab.proof_plan import Plan, Progress, Proof
from specchat.ui import proof_view as view
from specchat.ui.desk import Desk, status_line
from specchat.ui.session import Session
from specchat.ui.sidebar import Controls
from specchat.ui.tab import ahead, conduct, fitting, news, sentence, stop, waiting
from specchat.worker import Ended, Event, Task

if TYPE_CHECKING:
    from specchat.pair import Pair

Updates = dict[Component, object]

NAME = "proof"
"""What the session's task is called."""

TEXTS = 3
"""Greedy texts: one of each category of the suite."""


class ProofTab:
    """Components of the tab and their handlers."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self.samples = suite.sample(suite.load(), TEXTS)
        plain = {"js_on_load": None, "apply_default_css": False}
        with gr.Column(elem_id="sc-proof"):
            gr.HTML(view.INTRO, **plain)
            with gr.Row(elem_id="sc-proof-tools"):
                self.what = gr.Radio(
                    [("both", "both"), ("greedy texts", "greedy"), ("law of the first tokens", "law")],
                    value="both", label="Check", elem_id="sc-proof-what",
                )  # fmt: skip
                self.seconds = gr.Dropdown(
                    [("20 seconds", 20), ("1 minute", 60), ("5 minutes", 300)], value=60, label="Sample for",
                    elem_id="sc-proof-seconds", min_width=130, scale=0,
                )  # fmt: skip
                self.first = gr.Dropdown(
                    [("the first token", 1), ("the first 2 tokens", 2), ("the first 3 tokens", 3)], value=2,
                    label="Law of", elem_id="sc-proof-first", min_width=160, scale=0,
                )  # fmt: skip
                self.go = gr.Button("Run", variant="primary", elem_id="sc-proof-go", min_width=90, scale=0)
                self.halt = gr.Button("Stop", interactive=False, elem_id="sc-proof-stop", min_width=90, scale=0)  # fmt: skip
            self.prompt = gr.Textbox(
                label="A text of your own, examined first (optional)", lines=1, max_lines=4, elem_id="sc-proof-prompt",
                placeholder="Otherwise prompts of the suite", html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
            )  # fmt: skip
            self.status = gr.HTML(status_line("ready", "Ready"), elem_id="sc-proof-status", **plain)
            self.board = gr.HTML(view.empty(), elem_id="sc-proof-board", **plain)

    def wire(self) -> None:
        """Binds the handlers."""
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        self.go.click(
            self.run, inputs=[self.what, self.seconds, self.first, self.prompt],
            outputs=[self.status, self.board, self.go, self.halt], concurrency_limit=None, trigger_mode="multiple", **quiet,
        )  # fmt: skip
        self.halt.click(self.stop, queue=False, **quiet)

    # -- handlers -----------------------------------------------------------------------------------

    def run(
        self, what: str, length: object, first: object, prompt: str, request: gr.Request
    ) -> Iterator[Updates]:
        """Run."""
        session = self.desk.sessions.of(request.session_hash)
        plan = self._plan(session, what, length, first, prompt)
        if plan.settings.gamma == 0:
            yield {
                self.status: status_line(
                    "hint", "Speculation is off in the sidebar: there is nothing to compare with."
                )
            }
            return

        def work(pair: Pair, cancelled: Callable[[], bool], put: Callable[[object], None]) -> object:
            if not pair.drafters:
                raise ValueError(
                    f"This pair cannot speculate, so there is nothing to prove. {' '.join(pair.notes)}"
                )
            return prove(pair, replace(plan, settings=fitting(plan.settings, pair)), cancelled, put)

        def opening() -> Updates:
            return {
                self.status: status_line("reading", "Starting"),
                self.board: view.result(Proof(plan), Progress("", 0.0)),
                self.go: gr.update(interactive=False),
                self.halt: gr.update(interactive=True),
            }

        so_far = Proof(plan)

        def underway(batch: list[Event]) -> Updates:
            nonlocal so_far
            for value in news(batch):
                so_far = value if isinstance(value, Proof) else so_far
            return self._underway(batch, so_far)

        yield from conduct(
            self.desk, session, NAME, Task(work, "Proving"), opening, underway, self._closing,
            refused={self.status: status_line("hint", "One proof at a time: wait for this one, or stop it.")},
        )  # fmt: skip

    def _plan(self, session: Session, what: str, length: object, first: object, prompt: str) -> Plan:
        prompts = [(f"{p.id}, of the suite", p.text) for p in self.samples]
        own = well_formed(prompt or "")
        if not is_blank(own):
            prompts = [("your text", own), *prompts[:-1]]
        return Plan(
            session.live.get(),
            tuple(prompts),
            greedy=what != "law",
            law=what != "greedy",
            first=_within(first, 2, 1, 3),
            seconds=_within(length, 60, 5, 3600),
        )

    def _underway(self, batch: list[Event], so_far: Proof) -> Updates:
        steps = [value for value in news(batch) if isinstance(value, Progress)]
        if steps:
            return {
                self.status: status_line("writing", steps[-1].sentence),
                self.board: view.result(so_far, steps[-1]),
            }
        waits = ahead(batch)
        return {self.status: gr.skip() if waits is None else waiting(self.desk, waits, "proof")}

    def _closing(self, last: Ended | None) -> Updates:
        updates: Updates = {self.go: gr.update(interactive=True), self.halt: gr.update(interactive=False)}
        found = last.value if last is not None else None
        if isinstance(found, Proof) and (found.greedy or (found.law is not None and found.law.n)):
            ending = "Stopped." if found.stopped else "Finished."
            updates[self.board] = view.result(found)
            updates[self.status] = status_line("ready", f"{ending} Ready")
        elif last is not None and last.problem:
            updates[self.board] = sentence("The proof could not be made.", last.problem)
            updates[self.status] = status_line("failed", "The proof could not be made. Ready for the next.")
        else:
            updates[self.board] = view.empty()
            updates[self.status] = status_line("ready", "Stopped before anything was compared.")
        return updates

    def stop(self, request: gr.Request) -> None:
        """Ends the proof within a round; what was compared until then is shown."""
        stop(self.desk.sessions.of(request.session_hash), NAME)


def _within(value: object, otherwise: int, low: int, high: int) -> int:
    try:
        return max(low, min(high, int(float(str(value)))))
    except (ValueError, OverflowError):
        return otherwise
