"""The page's clock: while a reply is written in the tab, and while nobody sees the tab, it stands still.

A tick is an event of Gradio's: some 40 ms of the browser's and the server's time, whether it brings news or not.
"""

from __future__ import annotations

import gradio as gr

TICK_S = 2.0
"""Seconds between two ticks."""


def clock() -> gr.HTML:
    """An unseen component; its `select` is the tick. It ticks at once when the tab is seen again."""
    return gr.HTML(
        "",
        visible="hidden",
        js_on_load=f"specchatTicks(trigger, {TICK_S * 1000:.0f})",
        apply_default_css=False,
    )
