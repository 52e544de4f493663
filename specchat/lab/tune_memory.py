"""What was recommended for which pair, device and sampling: a small file in the user's cache."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from specchat.decode.engine import MAX_GAMMA
from specchat.decode.sampling import Sampling
from specchat.lab.tune_advice import Advice
from specchat.lab.tune_identity import identity_of
from specchat.model.store import cache_root

if TYPE_CHECKING:
    from specchat.pair import Pair

KEPT = 100
"""Recommendations that are kept; the oldest go."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A recommendation of an earlier run. when: the day, as people write it."""

    gamma: int
    drafter: str
    speedup: float
    headline: str
    reason: str
    when: str


def remember(
    identity: Mapping[str, str], sampling: Sampling, advice: Advice, folder: Path | None = None
) -> Path:
    """Keeps it, in place of an earlier one for the same pair and sampling. Raises OSError when it cannot be written."""
    path = _path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = Remembered(
        advice.gamma,
        advice.drafter,
        advice.speedup,
        advice.headline,
        advice.reason,
        time.strftime("%Y-%m-%d"),
    )
    with filelock.FileLock(path.with_suffix(".lock"), timeout=10):
        found = _read(path)
        key = _key(identity, sampling)
        found.pop(key, None)
        found[key] = asdict(entry)
        kept = dict(list(found.items())[-KEPT:])
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tuned.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"version": 1, "tuned": kept}, file, indent=1)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    return path


def remembered(pair: Pair, sampling: Sampling, folder: Path | None = None) -> Remembered | None:
    """The recommendation for this pair as it is loaded, with this sampling (whatever its seed); None without any."""
    entry = _read(_path(folder)).get(_key(identity_of(pair), sampling))
    try:
        found = Remembered(**entry) if isinstance(entry, dict) else None
    except TypeError:
        return None
    usable = (
        found is not None
        and isinstance(found.gamma, int)
        and isinstance(found.speedup, int | float)
        and all(isinstance(text, str) for text in (found.drafter, found.headline, found.reason, found.when))
        and 0 <= found.gamma <= MAX_GAMMA
        and (found.gamma == 0 or found.drafter in pair.drafters)
    )
    return found if usable else None


def changed_at(folder: Path | None = None) -> int:
    """When the file was last written, in nanoseconds; 0 as long as there is none."""
    try:
        return _path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def _path(folder: Path | None) -> Path:
    return (folder or cache_root()) / "tuned.json"


def _key(identity: Mapping[str, str], sampling: Sampling) -> str:
    return json.dumps({**identity, "sampling": asdict(replace(sampling, seed=None))}, sort_keys=True)


def _read(path: Path) -> dict[str, object]:
    """Every entry; none of a file that is missing or broken."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["tuned"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
