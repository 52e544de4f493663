"""The way of a reply to the page while it is being written: a connection of its own, opened with a ticket.

Gradio tells a component of a change by way of its whole state, there and here: 12 ms of the server's time and 20 of the
browser's for a few words, on cores that the reply is computed on. So Gradio says that a reply has begun and that it has
ended, and what comes between is sent as server-sent events and put in place by `assets/reply.js`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from urllib.parse import parse_qs

from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specchat.ui.live import Seen

PATH = "/specchat/reply"

Follow = Callable[[str], Generator[Seen, None, None]]
"""A ticket → what the page is to show of its reply, until its end; nothing for a ticket that is spent or unknown.
Yields every second or so, if only {}: then it can be closed, once the page is gone."""

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Nothing on the way is to keep it, or to hold it back."""


class Feed:
    """Answers `PATH?ticket=…` and passes on everything else."""

    def __init__(self, app: ASGIApp, follow: Follow) -> None:
        self.app = app
        self.follow = follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self.app(scope, receive, send)
            return
        ticket = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[0]
        updates = self.follow(ticket)
        answer = StreamingResponse(_events(updates), media_type="text/event-stream", headers=HEADERS)
        try:
            await answer(scope, receive, send)
        finally:
            # The page may be gone before the end. Leaving the stream waits for the thread that makes the next update; only
            # the end of the server does not, and then the worker's end is the reply's.
            with suppress(ValueError):
                updates.close()


async def _events(updates: Generator[Seen, None, None]) -> AsyncIterator[str]:
    async for seen in iterate_in_threadpool(updates):
        # Something is always sent: a connection that is silent may be taken for a dead one on the way.
        yield f"data: {json.dumps(seen)}\n\n" if seen else ":\n\n"
    yield "event: end\ndata:\n\n"
