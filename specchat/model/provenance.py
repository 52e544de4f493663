"""What a trained draft's provenance file says of it: how often it was accepted when it was made."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from specchat.model.catalog import BUILTIN, BUILTIN_HEAD, PairOptions


def about_file(draft: Path) -> Path:
    """Where a draft's provenance lies: draft.json beside draft.safetensors, draft.json beside the folder draft."""
    return (
        draft.with_suffix(".json")
        if draft.suffix == ".safetensors"
        else draft.with_name(f"{draft.name}.json")
    )


def accepted(options: PairOptions) -> tuple[float, ...]:
    """Held-out acceptance by position, 0…1, of the draft these options mean; () where nothing readable says it."""
    if options.draft:
        return _accepted(str(Path(options.draft).expanduser()))
    return _accepted(str(BUILTIN_HEAD)) if options.target == BUILTIN else ()


@lru_cache(maxsize=8)
def _accepted(draft: str) -> tuple[float, ...]:
    try:
        about = json.loads(about_file(Path(draft)).read_text(encoding="utf-8"))
        found = tuple(float(share) for share in about["held_out"]["acceptance_by_position"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return found if all(0 <= share <= 1 for share in found) else ()
