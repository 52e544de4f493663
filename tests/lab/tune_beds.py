"""Beds whose best γ is known: speed follows the formula, on a machine that drifts."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.decode.events import Round, Token
from specchat.lab.suite import Prompt
from specchat.lab.theory import expected_accepted, expected_speedup
from specchat.lab.tune_bed import Cancelled, Turn, Unit
from specchat.lab.tune_plan import Plan, Variant
from specchat.lab.tune_probe import Prediction

PROMPTS = (
    Prompt("code-01", "code", "a"),
    Prompt("summary-01", "summary", "b"),
    Prompt("code-02", "code", "c"),
    Prompt("summary-02", "summary", "d"),
)
PLAN = Plan(PROMPTS, 640, (0, 1))


class Planted:
    """A bed on which each drafter has its own α; every unit is a little slower than the one before it.

    stop_after: cancelled once so many units were measured. wrong: the factor by which the probe overrates α.
    """

    def __init__(
        self, alpha: float = 0.7, c: float = 0.08, v: float = 0.03, stop_after: int | None = None,
        drafters: tuple[str, ...] = ("chain",), alphas: dict[str, float] | None = None, wrong: float = 1.0,
        target: str = "planted",
    ) -> None:  # fmt: skip
        self.alphas = alphas or dict.fromkeys(drafters, alpha)
        self.c, self.v_slope, self.wrong = c, v, wrong
        self.drafters = drafters
        self.identity = {"target": target, "draft": "d", "device": "cpu", "precision": "float32"}
        self.asked: list[tuple[str, str, str, int]] = []
        self.warmed = 0
        self.probes = 0
        self.scripts = 0
        self.stop_after = stop_after

    def v(self, gamma: int) -> float:
        return 1 + self.v_slope * gamma

    def cancelled(self) -> bool:
        return self.stop_after is not None and len(self.asked) >= self.stop_after

    def speedup(self, gamma: int, drafter: str = "chain", misaligned: bool = False) -> float:
        alpha = self.alphas[drafter] * (0.6 if misaligned else 1)
        return expected_speedup(alpha, gamma, self.c, self.v(gamma)) if gamma else 1.0

    def best(self, drafter: str = "chain", limit: int = 16) -> int:
        return max(range(1, limit + 1), key=lambda gamma: self.speedup(gamma, drafter))

    def probe(self, plan: Plan, drafter: str, cancelled: Cancelled) -> Prediction | None:
        self.probes += 1
        alpha = min(0.99, self.alphas.get(drafter, 0.0) * self.wrong)
        judging = tuple((gamma, self.v(gamma)) for gamma in (1, 3, 8))
        return Prediction(alpha, self.c, 0.02, judging, 1.0, 96, (alpha,) * 8)

    def warm_up(self, plan: Plan, drafter: str) -> None:
        self.warmed += 1

    def unit(
        self, plan: Plan, wave: str, variant: Variant, prompt: Prompt, seed: int, cancelled: Cancelled
    ) -> Unit | None:
        if cancelled():
            return None
        self.asked.append((wave, variant.key, prompt.id, seed))
        drift = 1 + 0.001 * len(self.asked)
        plain = 0.02 * (1.5 if prompt.category == "code" else 1.0) * drift
        return self.planted(plan, wave, variant, prompt, seed, plain)

    def planted(
        self, plan: Plan, wave: str, variant: Variant, prompt: Prompt, seed: int, plain: float
    ) -> Unit:
        gamma, tokens = variant.gamma, plan.tokens
        alpha = self.alphas.get(variant.drafter, 0.0) * (0.6 if variant.misaligned else 1)
        accepted = expected_accepted(alpha, gamma) if gamma else 0.0
        rounds = round(tokens / (1 + accepted))
        seconds = (
            tokens * plain / (self.speedup(gamma, variant.drafter, variant.misaligned) if gamma else 1.0)
        )
        draft_s = rounds * gamma * self.c * plain
        return Unit(
            wave, gamma, variant.drafter, variant.misaligned, prompt.id, prompt.category, seed, tokens, seconds,
            emitted=tokens, rounds=rounds, drafted=rounds * gamma, accepted=tokens - rounds if gamma else 0,
            target_forwards=rounds, draft_forwards=rounds * gamma, draft_s=draft_s, verify_s=seconds - draft_s,
            sample_s=0.0, host_s=0.0, offered=(rounds,) * gamma,
            kept=tuple(round(rounds * alpha ** (i + 1)) for i in range(gamma)), memory=10**9,
        )  # fmt: skip

    def turns(self, plan: Plan, variant: Variant, seed: int, cancelled: Cancelled) -> Sequence[Turn] | None:
        self.scripts += 1
        return [
            Turn(1, seed, False, 40, 39, 0, 0.4),
            Turn(2, seed, True, 100, 30, 69, 0.3),
            Turn(2, seed, False, 100, 99, 0, 1.0),
        ]


def event(
    gamma: int, drafted: int, accepted: int, draft_s: float, verify_s: float, drafter: str = "model"
) -> Round:
    tokens = tuple(Token(1, "accepted", 1.0, 1.0, i) for i in range(accepted + 1))
    return Round(
        0, tokens, None, gamma, drafted, accepted, drafter, 1, drafted, draft_s, verify_s, 0.0, 0.0, 0.0
    )
