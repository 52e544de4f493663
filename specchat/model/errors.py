"""What can go wrong with a model, one type per kind; every message says what, why and what to do."""

from __future__ import annotations

from torch import Tensor

from specchat.decode.ids import Ids


class IdOutOfRange(ValueError):
    """A token id that the model has no row for."""


class ContextFull(ValueError):
    """More ids than the cache holds."""


class ModelError(ValueError):
    """Base of everything that stops a model before any chat starts; its text is fit for the screen."""


class FetchFailed(ModelError):
    """A download or a conversion could not finish: no network, no pip, a full disk, a wrong checksum."""


class BadCheckpoint(ModelError):
    """A file is missing, truncated, corrupt or does not belong to the rest."""


class UnsupportedModel(ModelError):
    """The files are sound, but this program does not (or by policy will not) run them."""


class PairMismatch(ModelError):
    """Target and draft cannot work together."""


class NotEnoughMemory(ModelError):
    """Weights and caches would not fit into the free memory of the device."""


def check_ids(ids: Ids, cached: int, capacity: int, rows: int) -> Ids:
    """Before a forward: at least one id, room for them behind the cached ones, a row in the table for each.

    Returns what to feed. Of ids on the device the host sees no value, so one without a row is given another's: it
    was drawn from nan, or the target has no logit for it either, so what follows from it is never used.
    Raises ValueError, ContextFull or IdOutOfRange.
    """
    if not len(ids):
        raise ValueError("A forward needs at least one id.")
    if cached + len(ids) > capacity:
        raise ContextFull(
            f"The context holds {capacity} tokens; {cached} are in use and {len(ids)} more were asked for."
        )
    if isinstance(ids, Tensor):
        return ids.clamp(0, rows - 1)
    for stray in (min(ids), max(ids)):
        if not 0 <= stray < rows:
            raise IdOutOfRange(f"Token id {stray} is outside the model's table of {rows}.")
    return ids


def sentence(problem: Exception) -> str:
    """An exception as a sentence for the screen."""
    return readable(str(problem).strip() or type(problem).__name__)


def readable(text: str) -> str:
    """An error's text as a sentence to act on, where the libraries give only their own words."""
    if "out of memory" in text.lower() or "can't allocate memory" in text.lower() or text == "MemoryError":
        return "Memory ran out. Close other programs, shorten the conversation, or start with a smaller --context."
    if " " not in text:
        return f"{text}, without further explanation; the terminal shows the details."
    return text
