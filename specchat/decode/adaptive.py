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

from specchat.decode.estimates import TURNED, Judging, Key, Mean, Rates, Turn, key_of, of_kind
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

DEBT = 512
"""Rounds after which there is another try, whatever the last one has cost."""

MEASURING = "measuring each part of a round"


@dataclass(slots=True)
class Adaptive:
    """Chooses γ round by round and stops blocks (see `Stopping`); learns from every round, also from those that
    others chose.

    A round is `choose`, then for each place of the block `starts` (by drafts that need a forward) and `takes`, then
    `learn`. The first `_forced` places are taken whatever is expected of them: that is how parts are measured at the
    beginning, and how something is tried later.
    """

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
    """γ of the first rounds, taken from the end."""
    _rows: Sequence[float] = (0.0,)
    """Seconds of a round beside drafting, by the rows of its verification, from 1."""
    _known: dict[Key, float] = field(default_factory=dict)
    """Chances that were already worked out since the last look."""
    _why: str = ""
    _since_look: int = EVERY
    _since_try: int = 0
    _tries: int = 0
    _purse: float = 0.0
    """Seconds that may be lost by tries."""
    _stake: float = 0.0
    """What this round's try is expected to lose; 0 when it is none."""
    _forced: int = 0
    _further: bool = False
    """Whether this block is to go on one place further than it would."""
    _keys: list[Key] = field(default_factory=list)
    """This block's proposals so far."""
    _reach: float = 1.0
    """The chance that all of them are kept."""
    _refused: Key | None = None
    """What was looked at last and not taken."""
    _drafting: dict[str, bool] = field(default_factory=dict)
    """Kinds that take a forward for each proposal, and whether they say how sure they are."""
    _exhausted: bool = False
    """Whether a block has ended empty: every kind of draft there is has been asked."""

    def choose(self, most: int) -> tuple[int, str]:
        """The most that the next block may have, 0…most, and the reason in words. `most` may be another one each time."""
        if most != self._most:
            self._begin(most)
        self._keys, self._reach, self._refused = [], 1.0, None
        self._forced, self._further, self._stake = 0, False, 0.0
        if self._opening:
            self._forced = min(self._opening.pop(), most)
            return self._forced, MEASURING
        if self._since_look >= EVERY:
            self._look()
        return self._try() or (0 if self.idle else most, self._why)

    def starts(self, kind: str) -> bool:
        """See Stopping."""
        self._drafting.setdefault(kind, False)
        return self._goes_on(kind, self._pays(kind, None))

    def takes(self, kind: str, sure: float | None) -> bool:
        """See Stopping."""
        if kind in self._drafting:
            self._drafting[kind] = sure is not None
        key = key_of(kind, len(self._keys), sure)
        chance = self._chance(key)
        if not self._goes_on(kind, self._pays(kind, chance)):
            self._refused = key
            return False
        self._keys.append(key)
        self._reach *= chance
        return True

    def learn(self, event: Round) -> None:
        """Takes in one more round. The times of a request's first one do not count: it warms up."""
        ended = event.accepted == len(event.tokens)
        if event.gamma:
            self._learn_text(event, ended)
        self._since_look += 1
        self._since_try += 1
        self._purse += SHARE * event.seconds
        if (
            self._stake
            and not self._further
            and (event.drafted or event.draft_forwards if self._forced else not event.gamma)
        ):
            # Only what was really tried is paid for.
            self._purse -= self._stake
            self._since_try = 0
            self._tries += 1
        if self.idle:
            # A try that had to catch up with the text; what a forward takes it does not show.
            self._purse -= max(0.0, event.draft_s - event.draft_forwards * self.forward.value)
            self._purse = max(self._purse, -SHARE * DEBT * self._seconds.value)
        if event.index == 0 or ended:
            return
        if event.draft_forwards and not (self.idle and self.forward.count):
            self.forward.add(self.forward.cut(event.draft_s / event.draft_forwards))
        self.judging.learn(event.drafted + 1, event.verify_s + event.sample_s + event.host_s)
        self._tokens.add(len(event.tokens))
        self._seconds.add(self._seconds.cut(event.seconds))

    def forget_text(self) -> None:
        """Other sampling or another confidence is in force: what was accepted before says little. The times stay."""
        self.rates, self.turn = Rates(), Turn()
        self._tokens, self._seconds = Mean(), Mean()
        self._since_look, self.idle, self._exhausted = EVERY, False, False

    def _learn_text(self, event: Round, ended: bool) -> None:
        keys = self._keys[: event.drafted]
        if keys:
            chances = list(accumulate((self._chance(key) for key in keys), mul))
            if self.turn.seen(event.accepted, chances):
                self.rates.forget(TURNED)
        # What another stopping refused was taken here and is not among the drafted.
        refused = (
            self._keys[event.drafted] if len(self._keys) > event.drafted and not ended else self._refused
        )
        self.rates.learn(keys, event.accepted, refused)
        self._exhausted |= event.drafted == 0

    # -- what pays ------------------------------------------------------------------------------

    def _goes_on(self, kind: str, pays: bool) -> bool:
        # Of a chain's links a free one is not forced: the next link's whole block would be lost.
        if not pays and self._further and (self._keys or kind in self._drafting):
            self._further, self._forced = False, len(self._keys) + 1
        return pays or len(self._keys) < self._forced

    def _pays(self, kind: str, chance: float | None) -> bool:
        """Whether the block is expected to gain by going on, to the next place or some further.

        chance: of the next place's proposal. None: the forward that would tell it was not run yet. Then what comes of
        a look is expected: that it is taken in so many cases, and kept in so many.
        """
        here, reach, gain = len(self._keys), self._reach, 0.0
        rows, step = self._rows, self.forward.value if kind in self._drafting else 0.0
        if not rows[0]:
            return here < START
        told = self._drafting.get(kind, False)
        drafting = step if chance is None else 0.0
        judging = 0.0
        for place in range(here, min(here + AHEAD, len(rows) - 1)):
            row = rows[place + 1] - rows[place]
            if chance is None or place > here:
                chance = self._chance(of_kind(kind) if told else key_of(kind, place, None))
                row *= self.rates.taken(kind) if told else 1.0
            reach *= chance
            gain += reach
            judging += row
            if gain > self._pace * (judging + drafting):
                return True
            drafting += step
        return False

    def _chance(self, key: Key) -> float:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.rates.chance(key)
        return found

    # -- looking and trying ---------------------------------------------------------------------

    def _begin(self, most: int) -> None:
        """The first time, a few rounds that show what rows and drafts cost; afterwards only another limit."""
        if self._most < 0:
            start = min(START, most)
            # The first round's times do not count, then whole, plain, whole, half.
            self._opening = [max(1, start // 2), start, 0, start]
        self._most = most
        self._since_look = EVERY

    def _look(self) -> None:
        self._since_look = 0
        self._known = {}
        self._keys, self._reach = [], 1.0
        self._rows = self.judging.upto(self._most + 1)
        plain = 1 / self._rows[0] if self._rows[0] else 0.0
        reached = self._tokens.value / self._seconds.value if self._seconds.value else 0.0
        # Where drafts lose, plain decoding is what a proposal has to beat, however slow the rounds were so far.
        self._pace = max(plain, reached)
        # To ask n-grams costs nothing: without a draft that takes forwards there is nothing to be spared.
        kinds = {*self.rates.kinds(), *self._drafting}
        self.idle = (
            self._exhausted and bool(self._drafting) and not any(self._pays(kind, None) for kind in kinds)
        )
        if self.idle:
            self._why = "no draft is expected to be worth its time"
            return
        row = max(0.0, self._rows[-1] - self._rows[0]) / max(1, self._most)
        least = min(1.0, (row + self.forward.value) * self._pace)
        self._why = f"{reached:.1f} tok/s of late; one more proposal is made where its chance is about {100 * least:.0f} % or more"

    def _try(self) -> tuple[int, str] | None:
        """Now and then something that is not expected to pay, when its expected loss has been saved up."""
        if self._since_try < APART or self._most < 1 or not self._pace:
            return None
        rows, step = self._rows, self.forward.value
        plain = not self.idle and self._tries % 3 == 2
        length = min(1 + self._tries % 2, self._most) if self.idle else 0
        if self.idle:
            stake = rows[length] + length * step - 1 / self._pace
        else:
            stake = rows[0] - 1 / self._pace if plain else step + (rows[-1] - rows[0]) / self._most
        if stake > self._purse:
            return None
        self._stake = max(stake, 1e-9)
        self._forced, self._further = length, not plain and not self.idle
        if plain:
            return 0, f"a plain step, to compare; {self._why}"
        return self._most, f"tried; {self._why}"
