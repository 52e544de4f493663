"""The way of a reply to the page while it is being written: a connection of its own, opened with a ticket.

Gradio tells every component of every change by way of its whole state, there and here: 12 ms of the server's time and
as much of the browser's for a few words, on cores that the reply is computed on. So Gradio says that a reply has begun
and that it has ended, and what comes between is sent as server-sent events and put in place by `assets/reply.js`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Generator
from urllib.parse import parse_qs

from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specchat.ui.live import Seen

PATH = "/specchat/reply"

Follow = Callable[[str], Generator[Seen, None, None]]
"""A ticket → what the page is to show of its reply, until its end; nothing for a ticket that is spent or unknown.
Yields at least every half a second, if only {}: no more is asked of it once the page is gone, and it is closed."""


class Feed:
    """Answers `PATH?ticket=…` and passes on everything else."""

    def __init__(self, app: ASGIApp, follow: Follow) -> None:
        self.app = app
        self.follow = follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self.app(scope, receive, send)
            return
        (ticket,) = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[:1]
        updates = self.follow(ticket)
        answer = StreamingResponse(
            _events(updates), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )
        try:
            await answer(scope, receive, send)
        finally:
            # The page may be gone before the end. No thread is in it: leaving the stream waits for the one that is.
            updates.close()


async def _events(updates: Generator[Seen, None, None]) -> AsyncIterator[str]:
    async for seen in iterate_in_threadpool(updates):
        if seen:
            yield f"data: {json.dumps(seen)}\n\n"
    yield "event: end\ndata:\n\n"
