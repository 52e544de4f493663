"""The never-slower guard: speculation rests while it is measured to be slower than plain decoding.

Everything is counted in the time that a round took beyond what plain steps would have needed for its tokens (its
excess; below 0 it won). The sum of excesses since it was last at its lowest is what speculation has lost (Page's
CUSUM, 1954): beyond a few plain steps, and with the recent rounds slower on average too, it rests. Then it is tried
again, for a small stake: after rests that grow as long as it goes on losing, and when another reply begins, whose
text may be of another kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from specchat.decode.estimates import Mean
from specchat.decode.events import Round

STAKE = 6.0
"""Plain steps that speculation may lose before it rests, if it has lost on average of late as well."""

LIMIT = 9.0
"""The same in any case, times the spread of a round's excess where that is more than a plain step: a text that has
turned is noticed before the average is."""

TRIAL_STAKE = 1.5
"""Plain steps that it may lose when it is tried again."""

LOSING = 1.01
"""How much slower than plain decoding counts as losing."""

TRIAL = 20
"""Rounds of a trial; one that has lost nothing by then has passed."""

REST, LONGEST_REST = 64, 512
"""Tokens of the first rest; each trial that fails in the same reply doubles it, up to the longest. `SHARE` may ask for
more."""

SHARE = 0.012
"""Of all time, what trials may take, as far as it can be foreseen."""

SOONER_SHARE, SOONER = 0.02, 32
"""When another reply begins, the rest ends: if the trial before took at most this share of the time that it
has rested for, and if it has rested for so many tokens."""

RECENT = 0.98
"""What a round still counts for the average of the recent ones when one more has passed."""

COMPARING = "measuring a plain step, to compare"
"""Why a round is plain though speculation is on."""

STEPS = 2
"""Plain steps measured before speculation begins."""

AGAIN, AT_START = 96, 32
"""Rounds after which plain steps are measured again, and the same when another reply begins: about 1 % of the time.
However good speculation looks: it may look so only because the last plain steps met a busy machine."""

STALE = 0.96
"""What a plain step still counts when one more round has passed without any."""

GOOD = 100
"""Rounds without a rest after which earlier failures are forgotten."""


@dataclass(slots=True)
class Guard:
    """Says before each round whether speculation may run, and learns from every round."""

    state: Literal["on", "trial", "rest"] = "on"
    plain: Mean = field(default_factory=Mean)
    """Seconds of a plain step."""
    lost: float = 0.0
    """Seconds lost since speculation was last at its best."""
    left: int = 0
    """Tokens that the rest still takes."""
    slower: float = 0.0
    """By how much speculation was slower than plain decoding in the stretch that sent it to rest: 0.12 is 12 %."""
    _excess: Mean = field(default_factory=Mean)
    _squares: Mean = field(default_factory=Mean)
    _drafting: Mean = field(default_factory=Mean)
    _recent_s: float = 0.0
    _recent_tokens: float = 0.0
    _rounds: int = 0
    """Rounds with speculation since the state changed."""
    _spent: float = 0.0
    """Seconds that this stretch of speculation has lost, catching up with the text included."""
    _failures: int = 0
    _rested: int = 0
    """Tokens of this rest so far."""
    _due: float = SOONER
    """Tokens of rest from which another reply's beginning ends it."""
    _since_plain: int = 0
    _context: int = 0
    _plain_context: int = 0
    _begins: bool = False
    """Whether another reply has begun since the last choice."""
    _steps: int = 0
    """Plain steps still to be measured before speculation goes on."""
    _stretch: tuple[float, int] = (0.0, 0)
    """Seconds and tokens of the rounds that `lost` sums up."""
    _check: list[float] | None = None
    """Plain steps measured while deciding whether to rest."""

    @property
    def resting(self) -> bool:
        """Whether the next round is a plain one because speculation rests."""
        return self.state == "rest" and self.left > 0 and not self._woken

    @property
    def _woken(self) -> bool:
        """Whether another reply ends the rest."""
        return self._begins and self._rested >= self._due

    def choose(self, gamma: int) -> tuple[int, str]:
        """γ, or 0 when the round shall be a plain one; with the reason in words ("": nothing to say)."""
        if self.state == "rest" and self._woken:
            self.left = self._failures = 0
        begins, self._begins = self._begins, False
        if self.state == "rest":
            if self.left > 0:
                return 0, f"Speculation is resting: it lost {self._lost()}; next try in {self.left} tokens"
            self._enter("trial")
        if self._measures_plain(begins):
            return 0, COMPARING
        if self.state == "trial":
            return gamma, f"trying speculation again: it lost {self._lost()} before"
        return gamma, ""

    def watching(self) -> str:
        """How it stands while speculation runs, in words."""
        if not self.plain.count or not self._recent_tokens:
            return "the guard watches: nothing to compare yet"
        slower = self._of_late()
        if slower <= 0:
            return "the guard watches: not slower than plain decoding of late"
        return f"the guard watches: {_percent(slower)} slower than plain decoding of late"

    def learn(self, event: Round) -> None:
        """Takes in one more round."""
        tokens = len(event.tokens)
        self._context += tokens
        if event.prefill is not None:
            self._context = event.prefill.reused + event.prefill.read + tokens
            self._begins = True
        if self.state == "rest":
            self.left = max(0, self.left - tokens)
            self._rested += tokens
        if event.gamma == 0:
            self._learn_plain(event)
        else:
            self._learn_speculative(event, tokens)

    def forget(self) -> None:
        """Other settings are in force: what was lost with the old ones says little."""
        self._failures = 0
        self._enter("on")

    def _measures_plain(self, begins: bool) -> bool:
        """Whether this round is to be a plain one only so that there is something to compare with."""
        if self._steps == 0:
            if self.plain.count == 0:
                self._steps = STEPS
            elif self._rounds and abs(self._context - self._plain_context) > 512 + self._plain_context // 3:
                # The context has grown or is another one, and a step's time with it.
                self._steps = 1
            elif self._since_plain >= AGAIN:
                self._steps = STEPS
            elif begins and self._since_plain >= AT_START:
                self._steps = 1
        return self._steps > 0

    def _learn_plain(self, event: Round) -> None:
        if event.index == 0:
            return
        if self._check is not None:
            self._confirm(event, self._check)
        self.plain.add(self.plain.cut(event.seconds), 0.95 * STALE**self._since_plain)
        self._plain_context, self._since_plain = self._context, 0
        if self.state != "rest":
            self._steps = max(0, self._steps - 1)

    def _learn_speculative(self, event: Round, tokens: int) -> None:
        self._since_plain += 1
        self._rounds += 1
        # Of a block that the reply's end cut, the time is known and the tokens are not: it would look like a loss.
        if not self.plain.count or event.index == 0 or event.accepted == len(event.tokens):
            return
        excess = event.seconds - tokens * self.plain.value
        self._spent += excess
        if self.state == "trial" and self._rounds == 1:
            # The draft caught up with the text: that is a price of the trial, not of speculation.
            excess -= max(0.0, event.draft_s - self._drafting.value)
        self._drafting.add(
            event.draft_s if self._drafting.count < 1 else self._drafting.cut(event.draft_s), RECENT
        )
        # A single slow round proves nothing; several do.
        excess = min(excess, 3 * self.plain.value + max(0.0, 2 * self._excess.value))
        self._recent_s = self._recent_s * RECENT + tokens * self.plain.value + excess
        self._recent_tokens = self._recent_tokens * RECENT + tokens
        self._excess.add(excess, RECENT)
        self._squares.add(excess * excess, RECENT)
        self.lost = max(0.0, self.lost + excess)
        seconds, written = self._stretch
        self._stretch = (seconds + event.seconds, written + tokens) if self.lost else (0.0, 0)
        self._judge()

    def _judge(self) -> None:
        # The first rounds may be bad luck: they have to lose more.
        stake = TRIAL_STAKE if self.state == "trial" else STAKE * (1 + 1.5 / self._rounds)
        # By what a plain step takes now, not by what it took when those rounds were run.
        losing = self._recent_s > LOSING * self._recent_tokens * self.plain.value
        spread = max(0.0, self._squares.value - self._excess.value**2) ** 0.5
        limit = LIMIT * max(spread, self.plain.value)
        over = self.state == "trial" and self._rounds >= TRIAL
        if (losing and (self.lost > stake * self.plain.value or over)) or self.lost > limit:
            if self.state == "on":
                # Not at once: see _confirm. A trial comes after a rest, which has just measured plain steps.
                self._check, self._steps = [], STEPS
            else:
                self._send_to_rest(self.plain.value)
        elif over or (self.state == "trial" and self._rounds >= 8 and self.lost == 0):
            self._enter("on")
        elif self.state == "on" and self._rounds == GOOD and not losing:
            self._failures = 0

    def _confirm(self, event: Round, fresh: list[float]) -> None:
        """The loss was counted against plain steps of some time ago: perhaps the machine is slower now, for both.

        The fastest of the fresh ones counts: something else may have come in between one of them.
        """
        fresh.append(event.seconds)
        if len(fresh) < STEPS:
            return
        self._check = None
        seconds, tokens = self._stretch
        if seconds - tokens * min(fresh) > self.lost / 2:
            self._send_to_rest(min(fresh))
            return
        self.plain = Mean(STEPS * min(fresh), STEPS)
        self.lost, self._stretch = 0.0, (0.0, 0)

    def _send_to_rest(self, plain_s: float) -> None:
        """plain_s: seconds of a plain step, by which the loss was found."""
        seconds, tokens = self._stretch
        self.slower = seconds / (tokens * plain_s) - 1 if tokens else self._of_late()
        self.left, self._rested, self._due = self._rest(), 0, SOONER
        if self.state == "trial":
            self._due = max(SOONER, self._spent / (SOONER_SHARE * plain_s))
        self._failures += 1
        self._enter("rest")

    def _rest(self) -> int:
        """Tokens: the more, the more it lost; doubled by every failure; and so many that a trial's loss is a small share."""
        tokens = min(int(REST * (1 + 4 * max(0.0, self._of_late()))) << self._failures, LONGEST_REST)
        if self.state == "trial":
            tokens = max(tokens, int(self._spent / (SHARE * self.plain.value)))
        return tokens

    def _enter(self, state: Literal["on", "trial", "rest"]) -> None:
        if not (state == "on" and self.state == "trial"):
            self._excess, self._squares = Mean(), Mean()
            self._recent_s = self._recent_tokens = 0.0
        self.state = state
        self.lost = self._spent = 0.0
        self._stretch, self._check = (0.0, 0), None
        self._rounds = self._steps = 0

    def _of_late(self) -> float:
        """By how much the recent rounds were slower than plain decoding."""
        return self._recent_s / (self._recent_tokens * self.plain.value) - 1

    def _lost(self) -> str:
        return _percent(self.slower)


def _percent(slower: float) -> str:
    return f"{100 * slower:.0f} %" if slower >= 0.01 else "less than 1 %"
