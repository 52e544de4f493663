"""Which conversation belongs to which browser tab, also after the page was loaded again.

Gradio gives every load of the page a hash. What outlives a load is the session's key: the tab keeps it in its
sessionStorage, which no other tab reads, and hands it back. Only duplicating a tab copies it; then, as whenever
the other page may still be there, the new one goes on with a copy, so two pages never write into one conversation.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable

from specchat.ui.session import Session

KEPT_SESSIONS = 200
"""Conversations remembered, in open tabs and closed ones; beyond that the one not used for longest goes."""


class Sessions:
    """Every session by its key, and the key of every load of the page. Thread-safe."""

    def __init__(self, new: Callable[[], Session]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Session] = OrderedDict()
        self._keys: dict[str, str] = {}
        """Hash of a page load → key of its session."""

    def of(self, tab: str | None) -> Session:
        """The session of a page load; a new one on first sight."""
        with self._lock:
            return self._of(tab or "")

    def all(self) -> list[Session]:
        """Every session that is kept, the least recently used first."""
        with self._lock:
            return list(self._kept.values())

    def with_ticket(self, ticket: str) -> Session | None:
        """The session whose last reply this ticket stands for."""
        return next((session for session in self.all() if session.ticket == ticket), None)

    def resume(self, tab: str | None, key: str) -> tuple[str, Session]:
        """The page was loaded, and its tab brought this key ("": none): the key to keep from now on, and its session.

        An unknown key, as after a restart of the program, means a new session.
        """
        tab = tab or ""
        with self._lock:
            fresh, kept = self._of(tab), self._kept.get(key)
            if kept is not None and kept is not fresh and not fresh.turns:
                if kept.tab is not None or kept.busy:
                    key, kept = secrets.token_urlsafe(16), kept.copy()
                self._forget(self._keys[tab])
                self._keys = {old: owner for old, owner in self._keys.items() if owner != key}
                self._enter(tab, key, kept)
            return self._keys[tab], self._of(tab)

    def close(self, tab: str | None) -> None:
        """The page is gone: its reply and its tasks are cancelled, a reply that it has not come to follow is ended.

        The conversation is kept, for the page may only be loaded again.
        """
        with self._lock:
            session = self._kept.get(self._keys.get(tab or "", ""))
            if session is None or session.tab != (tab or ""):
                return
            session.tab = None
        session.abandon()
        for handle in (session.handle, *list(session.tasks.values())):
            if handle is not None:
                handle.cancel()

    def _of(self, tab: str) -> Session:
        key = self._keys.get(tab)
        if key is None:
            key = secrets.token_urlsafe(16)
            self._enter(tab, key, self._new())
        session = self._kept[key]
        session.tab = tab
        self._kept.move_to_end(key)
        return session

    def _enter(self, tab: str, key: str, session: Session) -> None:
        self._keys[tab], self._kept[key] = key, session
        session.tab = tab
        idle = [old for old, other in self._kept.items() if not other.busy and old != key]
        for old in idle[: max(0, len(self._kept) - KEPT_SESSIONS)]:
            self._forget(old)

    def _forget(self, key: str) -> None:
        self._kept.pop(key, None)
        self._keys = {tab: owner for tab, owner in self._keys.items() if owner != key}
