"""Which pair a tuning run belongs to: everything whose change would make its figures those of something else."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.model.catalog import BUILTIN, OWN_DRAFTS
from specchat.model.store import sha256_of

if TYPE_CHECKING:
    from specchat.pair import Pair


def identity_of(pair: Pair) -> dict[str, str]:
    """Names, where the models came from, device, precision, context and threads of the pair as it is loaded.

    The names alone tell neither two trained heads apart nor two folders of one name. A pair that was not opened
    but put together has no sources and no threads of its own.
    """
    found = {
        "target": pair.target_name,
        "draft": pair.draft_name,
        "device": str(getattr(pair.target, "device", "cpu")),
        "precision": pair.precision,
        "context": str(pair.capacity),
    }
    if pair.facts is None:
        return found
    # Here, not above: these bring the models' libraries, which a loaded pair has brought already.
    from specchat.drafts import default_draft
    from specchat.model.threads import default_threads

    options = pair.facts.options
    return found | {
        "target source": _source(options.target, pair.number),
        "draft source": _source(options.draft or default_draft(options.target), pair.number),
        "threads": str(options.threads or getattr(pair.target, "threads", None) or default_threads()),
    }


@lru_cache(maxsize=32)
def _source(source: str, number: int) -> str:
    """A path in full, a trained head by what it holds: training again writes another one to the same place.

    number: the pair's. Asked once for each pair, as the file may change or go while the pair is in use.
    """
    from specchat.drafts import is_head

    path = Path(source).expanduser()
    if source in (BUILTIN, *OWN_DRAFTS) or not path.exists():
        return source
    return f"sha256:{sha256_of(path)[:16]}" if is_head(source) else str(path.resolve())


def differences(mine: dict[str, str], other: object) -> list[str]:
    """What differs between two of them, by name."""
    others = other if isinstance(other, dict) else {}
    return [name for name in {**mine, **others} if mine.get(name) != others.get(name)]
