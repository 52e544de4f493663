"""The fixed prompts of the benchmark, and a smaller sample with every category in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROMPTS = Path(__file__).parents[2] / "assets" / "prompts.json"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the suite. category: code, summary or questions."""

    id: str
    category: str
    text: str


def load(path: Path = PROMPTS) -> list[Prompt]:
    """The suite in its order; ValueError names what is wrong with a file of one's own."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["prompts"]
        prompts = [Prompt(str(e["id"]), str(e["category"]), str(e["prompt"])) for e in entries]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(
            f"{path} is no prompt suite ({problem!r}); see assets/prompts.json for the form."
        ) from problem
    if not prompts:
        raise ValueError(f"{path} holds no prompts.")
    return prompts


def sample(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first prompts of each category in turn, `count` in all (or every prompt, if there are fewer)."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    longest = max(map(len, by_category.values()))
    turns = [group[i] for i in range(longest) for group in by_category.values() if i < len(group)]
    return turns[:count]
