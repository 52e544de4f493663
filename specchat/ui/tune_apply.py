"""What a recommendation sets in the sidebar, once it is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gradio.components import Component

from specchat.ui.sidebar import Controls
from specchat.ui.tune_view import told

if TYPE_CHECKING:
    from specchat.pair import Pair


class Advised(NamedTuple):
    """What Apply sets. number: that of the pair it is for."""

    gamma: int
    drafter: str
    number: int


def set_by_it(controls: Controls) -> list[Component]:
    """The controls that `applied` may set."""
    return [
        controls.on,
        controls.gamma,
        controls.drafter,
        controls.adaptive,
        controls.guard,
        controls.confidence,
    ]


def applied(
    advised: Advised | None, pair: Pair | None, controls: Controls
) -> tuple[dict[Component, object], str]:
    """New values of the controls, {} when it cannot be applied, and what is said about it, as HTML."""
    if advised is None:
        return {}, told("There is nothing to apply yet.")
    gamma, drafter, number = advised
    if pair is None or pair.number != number:
        return {}, told("Another pair is loaded; run it again.", error=True)
    if not gamma:
        return {controls.on: False}, told("Applied: speculation is off.")
    if drafter not in pair.drafters:
        return {}, told(f"The pair that is loaded has no drafter {drafter}.", error=True)
    return {
        controls.on: True,
        controls.gamma: gamma,
        controls.drafter: drafter,
        # As it was measured.
        controls.adaptive: False,
        controls.guard: False,
        controls.confidence: 0,
    }, told(
        f"Applied: γ {gamma}, drafter {drafter}; adaptive γ, guard and confidence stop are off, as it was measured. "
        "In force from the next round on."
    )
