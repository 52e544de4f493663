"""The Tune tab: stages of tuning, predicted and measured."""

from __future__ import annotations

import gradio as gr

from specchat.ui.desk import Desk
from specchat.ui.sidebar import Controls


class TuneTab:
    """Components of the tab and their handlers."""

    def __init__(self, desk: Desk, controls: Controls) -> None:
        self.desk = desk
        self.controls = controls
        self.head = gr.HTML("", js_on_load=None, apply_default_css=False)

    def wire(self) -> None:
        """Binds the handlers."""
