"""A tuning run's progress in words, for the terminal and the page."""

from __future__ import annotations

from specchat.lab.tune import Outcome


def progress_words(outcome: Outcome) -> str:
    """What is being done, how much of it is done, how long it will take."""
    now = outcome.progress
    if not now.total:
        return now.doing
    left = (
        ""
        if now.seconds_left is None or now.done == now.total
        else f", about {duration(now.seconds_left)} left"
    )
    return f"{now.doing}: {now.done} of {now.total} runs{left}"


def duration(seconds: float) -> str:
    """40 s, 3 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
