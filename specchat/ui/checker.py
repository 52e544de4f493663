"""Asks `lab.forecast` in a process of its own: it may be slow, fail or hang, and the page goes on.

The process is kept for a while, because importing the models' libraries takes seconds; it runs with the hub's
library switched offline, so a check that was not asked to cannot reach the network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from specchat.model.catalog import Finding, PairOptions

COMMAND = (sys.executable, "-m", "specchat.lab.forecast")
ROOT = Path(__file__).resolve().parents[2]

LIMIT_S = 120.0
"""A check that takes longer is given up. The first one imports the libraries, and a large GGUF takes a while to read."""

IDLE_S = 180.0
"""Seconds after which a process that is not asked anything ends."""


class Checker:
    """One a page. Checks run one after another; each ends with findings, whatever happens."""

    def __init__(self, command: Sequence[str] = COMMAND, limit_s: float = LIMIT_S) -> None:
        self._command, self._limit_s = command, limit_s
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._rest: threading.Timer | None = None

    def check(self, options: PairOptions, freed: int = 0, ask_hub: bool = False) -> list[Finding]:
        """What stands for and against this choice. freed: bytes the loaded pair gives back. Blocks up to `limit_s`."""
        request = json.dumps({"options": dataclasses.asdict(options), "freed": freed, "ask_hub": ask_hub})
        with self._lock:
            self._end_rest()
            kept = None if ask_hub else self._child
            child = kept if kept is not None and kept.alive() else None
            try:
                child = child or _Child(self._command, offline=not ask_hub)
                found = [Finding(**one) for one in json.loads(child.ask(request, self._limit_s))]
            except queue.Empty:
                found = [_given_up(f"it took longer than {self._limit_s:.0f} s")]
            except (OSError, ValueError, TypeError) as problem:
                found = [_given_up(f"its process ended: {problem}")]
            else:
                if not ask_hub:
                    self._child = child
                    self._rest = threading.Timer(IDLE_S, self.close)
                    self._rest.daemon = True
                    self._rest.start()
                    return found
            if child is not None:
                child.end()
            if child is self._child:
                self._child = None
            return found

    def close(self) -> None:
        """Ends the process, and gives back its memory; the next check starts another. Nothing while it is checking."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._end_rest()
            if self._child is not None:
                self._child.end()
            self._child = None
        finally:
            self._lock.release()

    def _end_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._rest = None


def _given_up(reason: str) -> Finding:
    return Finding(
        "Check", "open", f"The check was given up ({reason}); loading will show whether the two fit."
    )


class _Child:
    """The process, and a thread that reads its answers. Ends by itself when this program does: its input ends."""

    def __init__(self, command: Sequence[str], offline: bool) -> None:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "PYTHONIOENCODING": "utf-8",
                "TOKENIZERS_PARALLELISM": "false",
                **({"HF_HUB_OFFLINE": "1"} if offline else {}),
            },
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, name="forecast", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put("")

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: str, limit_s: float) -> str:
        """Raises OSError or ValueError when the process is gone, queue.Empty when the time is over."""
        assert self._process.stdin is not None
        print(request, file=self._process.stdin, flush=True)
        answer = self._answers.get(timeout=limit_s)
        if not answer:
            raise OSError(f"status {self._process.wait(5)}")
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
