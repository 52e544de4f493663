"""The proof's verdict in sentences: the same on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from specchat.lab.proof_plan import Proof

State = Literal["same", "different", "nothing"]

TITLES: Mapping[State, str] = {
    "same": "No difference found",
    "different": "A difference was found",
    "nothing": "Nothing was put to the test",
}


def state_of(proof: Proof) -> State:
    """ "different", "same", or "nothing" when nothing was put to the test."""
    if any(row.difference for row in proof.greedy) or (proof.law is not None and proof.law.differs):
        return "different"
    drafted = sum(row.on.drafted for row in proof.greedy) + (proof.law.stats.drafted if proof.law else 0)
    compared = sum(row.compared for row in proof.greedy) + (proof.law.n if proof.law else 0)
    return "same" if drafted and compared else "nothing"


def sentences(proof: Proof) -> list[str]:
    """What the verdict says."""
    said = [*greedy_words(proof), *law_words(proof)]
    if state_of(proof) == "nothing":
        said = [
            "No proposal was judged, so on and off were the same thing. Switch speculation on, or choose a drafter that "
            "has something to propose."
        ]
    if proof.stopped:
        said.append("It was stopped: this is what there was until then.")
    return said


def greedy_words(proof: Proof) -> list[str]:
    """On the greedy texts; nothing without any."""
    rows = proof.greedy
    if not rows:
        return []
    tokens, ties = sum(row.compared for row in rows), sum(len(row.ties) for row in rows)
    wrong = [row for row in rows if row.difference is not None]
    if wrong:
        where = ", ".join(
            f'token {row.difference.place + 1} of "{row.name}"' for row in wrong if row.difference
        )
        return [f"Greedy texts differ, and it is no numerical tie: {where}."]  # fmt: skip
    tied = f", aside from {ties} numerical tie{'s' if ties != 1 else ''}" if ties else ""
    texts = "1 text" if len(rows) == 1 else f"{len(rows)} texts"
    return [f"Greedy: {tokens} tokens of {texts} are identical with speculation on and off{tied}."]


def law_words(proof: Proof) -> list[str]:
    """On the law; nothing without a sample."""
    found = proof.law
    if found is None or not found.tests:
        return []
    if found.differs:
        worst = min(found.tests, key=lambda test: test.p)
        return [
            f"Sampling: the law of the first {found.first} tokens differs ({worst.name}: p = {p_words(worst.p)}, distance "
            f"{worst.distance:.2f}, {found.n} samples each). By chance a p this small comes less than once in "
            f"{round(1 / found.threshold):,} tests. Run it once more: chance does not repeat itself, a fault does."
        ]
    main = found.tests[0]
    if main.dof < 1:
        return ["Sampling: only one outcome came, so there is no law to compare. Raise the temperature."]
    seen = min(test.noticeable for test in found.tests if test.name != "off against the exact law")
    return [
        f"Sampling: {found.n} replies each, on and off, show no difference in the law of their first {found.first} tokens "
        f"(p = {p_words(main.p)}). A true distance of {seen:.2f} or more would have been noticed nine times in ten."
    ]


def p_words(value: float) -> str:
    """A p-value with as many digits as it deserves."""
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}" if value > 0 else "0"
