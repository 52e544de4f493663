"""What is on the Chat tab: its components, and which of them an event may change."""

from __future__ import annotations

import gradio as gr
from gradio.components import Component

from specchat.ui.chat_save import ChatSave
from specchat.ui.desk import Desk
from specchat.ui.session import Session
from specchat.ui.transcript import PRESSED, empty

Updates = dict[Component, object]


class ChatParts:
    """The components. One object a page; what differs by tab is in the session."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        with gr.Row(elem_id="sc-main", equal_height=False):
            with gr.Column(elem_id="sc-chat", scale=3, min_width=320):
                self._build_chat()
            with gr.Column(elem_id="sc-side", scale=1, min_width=300):
                self.panel = gr.HTML(
                    desk.panel(Session(desk.sessions.of("").live)),
                    js_on_load="specchatPart('panel', props)",
                    apply_default_css=False,
                )

    def _build_chat(self) -> None:
        with gr.Column(elem_id="sc-log"):
            self.log = gr.HTML(
                empty(self.desk.notes), js_on_load=PRESSED, apply_default_css=False, elem_id="sc-settled"
            )
            self.live = gr.HTML(
                "",
                # Its value is the ticket of a reply, or `over`; what is in it is put there by the page's script. Gradio
                # leaves that alone, as the template says the same whatever the value is.
                html_template=" ",
                js_on_load="specchatReply(element, props, watch, trigger)",
                apply_default_css=False,
                elem_id="sc-live",
            )
        self.legend = gr.HTML(
            "", js_on_load=None, apply_default_css=False, elem_id="sc-legend", visible=False
        )
        self.status = gr.HTML(
            self.desk.status(self.desk.sessions.of("")),
            js_on_load="specchatPart('status', props)",
            apply_default_css=False,
            elem_id="sc-state",
        )
        self.box = gr.Textbox(
            show_label=False, label="Message", placeholder="Write a message",
            lines=1, max_lines=8, submit_btn="Send", autofocus=True, elem_id="sc-box",
            html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
        )  # fmt: skip
        with gr.Row(elem_id="sc-tools"):
            self.retry = gr.Button("Retry", size="sm", interactive=False, elem_id="sc-retry", min_width=60)
            self.edit = gr.Button("Edit", size="sm", interactive=False, elem_id="sc-edit-last", min_width=60)
            self.undo = gr.Button("Undo", size="sm", interactive=False, elem_id="sc-undo", min_width=60)
            self.new = gr.Button("New chat", size="sm", interactive=False, elem_id="sc-new", min_width=80)
            self.save = ChatSave(self.desk)
            self.lens = gr.Checkbox(label="Token lens", elem_id="sc-lens", container=False, min_width=100)
            self.rejected = gr.Checkbox(
                label="Rejected proposals", elem_id="sc-rejected", container=False, visible=False, min_width=140,
            )  # fmt: skip

    def _outputs(self) -> list[Component]:
        return [self.log, self.live, self.panel, self.status, self.box, self.retry, self.edit, self.undo, self.new,
                self.rejected, self.legend, *self.save.buttons]  # fmt: skip

    @staticmethod
    def over(ticket: str) -> str:
        """What `live` holds when the reply of this ticket has ended; an end told late does not end the next one."""
        return f"{ticket}."

    @property
    def idle_outputs(self) -> list[Component]:
        """What `idle` may change."""
        return [self.log, self.status, self.panel]

    @property
    def _nothing(self) -> Updates:
        """No change. (Gradio takes an empty dict for a missing value.)"""
        return {self.status: gr.skip()}

    @property
    def resumed_outputs(self) -> list[Component]:
        """What `resumed` may change."""
        return [*self._outputs(), self.lens]
