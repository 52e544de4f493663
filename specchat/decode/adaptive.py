"""Adaptive γ: a block goes on as long as one more proposal is expected to be worth its time.

Not the longest acceptance: a proposal that is kept half of the time still loses where it costs more than it saves.
In the long run as many tokens a second are written as can be when every proposal, with the draft's forward and the
row of the verification that it takes, brings more tokens than the same time brings at the speed reached so far.
What is known of a proposal before it is drawn tells good ones from bad ones: how sure the draft is of its likeliest
token, how long an n-gram was found. So one block is long and the next is short, and the reply keeps the target's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from specchat.decode.estimates import TURNED, Judging, Key, Mean, Rates, Turn, key_of
from specchat.decode.events import Round

START = 4
"""γ of the first round, when the slider lets it."""

EVERY = 4
"""Rounds between two looks at the estimates."""

AHEAD = 4
"""Places looked ahead: what one more alone does not pay, some more may."""

SHARE = 0.005
"""Of all time, what may be lost by trying what is not expected to pay."""

APART = 12
"""At least so many rounds lie between two tries."""

MEASURING = "measuring each part of a round"


@dataclass(slots=True)
class Adaptive:
    """Chooses γ round by round and stops blocks (see `Stopping`); learns from every round, also from those that
    others chose."""

    looks: bool = True
    """Whether it may ask how sure a draft is: on a GPU that makes the host wait for every proposal."""
    idle: bool = False
    """Whether no draft is expected to be worth its time: the rounds are plain ones, tries aside."""
    rates: Rates = field(default_factory=Rates)
    forward: Mean = field(default_factory=Mean)
    """Seconds of a draft's forward."""
    judging: Judging = field(default_factory=Judging)
    turn: Turn = field(default_factory=Turn)
    _tokens: Mean = field(default_factory=Mean)
    _seconds: Mean = field(default_factory=Mean)
    """Of a round, whatever its γ."""
    _pace: float = 0.0
    """Tokens a second that a proposal has to beat."""
    _most: int = -1
    _opening: list[int] = field(default_factory=list)
    _rows: Sequence[float] = (0.0,)
    """Seconds of a round beside drafting, by the rows of its verification, from 1."""
    _chances: dict[Key, float] = field(default_factory=dict)
    """What was already worked out since the last look."""
    _why: str = ""
    _since_look: int = EVERY
    _since_try: int = 0
    _turn: int = 0
    _purse: float = 0.0
    """Seconds that may be lost by tries."""
    _forced: int = 0
    """Places of this block that are taken whatever is expected of them."""
    _trying: bool = False
    """Whether this block is to go on one place further than it would."""
    _keys: list[Key] = field(default_factory=list)
    """This block's proposals so far."""
    _reach: float = 1.0
    """The chance that all of them are kept."""
    _drafting: dict[str, bool] = field(default_factory=dict)
    """Kinds that take a forward for each proposal, and whether they say how sure they are."""

    def choose(self, most: int) -> tuple[int, str]:
        """The most that the next block may have, 0…most, and the reason in words. `most` may be another one each time."""
        if most != self._most:
            self._begin(most)
        self._keys, self._reach = [], 1.0
        self._forced, self._trying = 0, False
        if self._opening:
            self._forced = min(self._opening.pop(), most)
            return self._forced, MEASURING
        if self._since_look >= EVERY:
            self._look()
        return self._try() or (0 if self.idle else most, self._why)

    def starts(self, kind: str) -> bool:
        """See Stopping."""
        self._drafting.setdefault(kind, False)
        return self._goes_on(self._pays(kind, None))

    def takes(self, kind: str, sure: float | None) -> bool:
        """See Stopping."""
        if sure is not None:
            self._drafting[kind] = True
        key = key_of(kind, len(self._keys), sure)
        chance = self._chance(key)
        if not self._goes_on(self._pays(kind, chance)):
            return False
        self._keys.append(key)
        self._reach *= chance
        return True

    def learn(self, event: Round) -> None:
        """Takes in one more round. The times of a request's first one do not count: it warms up."""
        keys = self._keys[: event.drafted]
        ended = event.accepted == len(event.tokens)
        if keys:
            chances = list(accumulate((self._chance(key) for key in keys), mul))
            if self.turn.seen(event.accepted, chances):
                self.rates.forget(TURNED)
            self.rates.learn(keys, event.accepted)
        self._since_look += 1
        self._since_try += 1
        self._purse += SHARE * event.seconds
        if event.index == 0 or ended:
            return
        if event.draft_forwards:
            seconds = event.draft_s / event.draft_forwards
            if self.idle:
                self._purse -= max(0.0, event.draft_s - event.draft_forwards * self.forward.value)
            self.forward.add(self.forward.cut(seconds))
        self.judging.learn(event.drafted + 1, event.verify_s + event.sample_s + event.host_s)
        self._tokens.add(len(event.tokens))
        self._seconds.add(self._seconds.cut(event.seconds))

    def forget_text(self) -> None:
        """Other sampling or another confidence is in force: what was accepted before says little. The times stay."""
        self.rates, self.turn = Rates(), Turn()
        self._since_look, self.idle = EVERY, False

    # -- what pays ------------------------------------------------------------------------------

    def _goes_on(self, pays: bool) -> bool:
        if not pays and self._trying:
            self._trying, self._forced = False, len(self._keys) + 1
        return pays or len(self._keys) < self._forced

    def _pays(self, kind: str, chance: float | None) -> bool:
        """Whether the block is expected to gain by going on, to the next place or some further. chance: of the next
        place, whose forward was run; None: it was not, and nothing is known of it."""
        here, reach, gain = len(self._keys), self._reach, 0.0
        rows, step = self._rows, self.forward.value if kind in self._drafting else 0.0
        if not rows[0]:
            return here < START
        drafting = step if chance is None else 0.0
        for place in range(here, min(here + AHEAD, len(rows) - 1)):
            if chance is None or place > here:
                chance = self._chance(
                    (kind, -1, True) if self._drafting.get(kind) else key_of(kind, place, None)
                )
            reach *= chance
            gain += reach
            if gain > self._pace * (rows[place + 1] - rows[here] + drafting):
                return True
            drafting += step
        return False

    def _chance(self, key: Key) -> float:
        found = self._chances.get(key)
        if found is None:
            found = self._chances[key] = self.rates.chance(key)
        return found

    # -- looking and trying ---------------------------------------------------------------------

    def _begin(self, most: int) -> None:
        """The first time, a few rounds that show what rows and drafts cost; afterwards only another limit."""
        if self._most < 0:
            start = min(START, most)
            # Taken from the end: the first round's times do not count, then plain, whole, half.
            self._opening = [max(1, start // 2), start, 0, start]
        self._most = most
        self._since_look = EVERY

    def _look(self) -> None:
        self._since_look = 0
        self._chances = {}
        self._rows = self.judging.upto(self._most + 1)
        plain = 1 / self._rows[0] if self._rows[0] else 0.0
        reached = self._tokens.value / self._seconds.value if self._seconds.value else 0.0
        # Where drafts lose, plain decoding is what a proposal has to beat, however slow the rounds were so far.
        self._pace = max(plain, reached)
        kinds = {kind for kind, level, _ in self.rates.counts if level == -1}
        self.idle = bool(kinds) and not any(self._pays(kind, None) for kind in kinds)
        if self.idle:
            self._why = (
                f"plain decoding is expected to be fastest ({plain:.1f} tok/s): no proposal is worth its time"
            )
            return
        one = (self._rows[min(2, self._most)] - self._rows[min(1, self._most)]) + self.forward.value
        self._why = (
            f"{reached:.1f} tok/s of late (plain: {plain:.1f}); one more proposal is made where it is kept with a "
            f"chance of {min(1.0, one * self._pace):.0%} or more"
        )

    def _try(self) -> tuple[int, str] | None:
        """Now and then something that is not expected to pay, when its expected loss has been saved up."""
        if self._since_try < APART or self._most < 1 or not self._pace:
            return None
        further = 1 + self._turn % 2 if self.idle else 0
        plain = not self.idle and self._turn % 3 == 2
        step, rows = self.forward.value, self._rows
        if self.idle:
            further = min(further, self._most)
            loss = rows[further] + further * step - 1 / self._pace
        else:
            loss = rows[0] - 1 / self._pace if plain else step + (rows[-1] - rows[0]) / self._most
        if loss > self._purse:
            return None
        self._purse -= loss
        self._turn += 1
        self._since_try = 0
        self._forced, self._trying = further, not plain and not self.idle
        if plain:
            return 0, f"a plain step, to compare; {self._why}"
        return self._most, f"tried once; {self._why}"
