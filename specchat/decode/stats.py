"""Everything that is counted about a reply, from its `Round` events alone. No torch.

Two lengths that are easily confused, named as the literature names them:
mean accepted length = accepted / rounds (0…γ); tokens per round = emitted / rounds (1…γ+1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from specchat.decode.events import Origin, Prefill, Round


@dataclass(slots=True)
class Stats:
    """Counters over the rounds added so far. Ratios of nothing are 0, never an exception.

    Rule for a block in which the reply ends (EOS or a stop string at an accepted proposal): the
    proposals behind that token were not judged, so they count neither as drafted nor as accepted.
    """

    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    host_s: float = 0.0
    first_tokens: int = 0
    """Tokens of the first round: they arrive at `first_token_s`."""
    first_token_s: float = 0.0
    """Seconds from the request to the end of its first round: prompt reading included."""
    elapsed_s: float = 0.0
    """Seconds from the request to the end of its last round."""
    speculative_rounds: int = 0
    largest_gamma: int = 0
    """Largest γ of a round; 0 when speculation was off throughout."""
    plain_rounds: int = 0
    plain_s: float = 0.0
    """Seconds spent in rounds without a proposal: their mean is the measured plain step. (A round whose draft was
    asked and not confident enough is neither plain nor speculative.)"""
    prefill: Prefill | None = None
    origins: Counter[Origin] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    """Accepted length → rounds, over the rounds that had a proposal."""
    offered: Counter[int] = field(default_factory=Counter)
    """Place in the block (from 0) → how often a proposal stood there."""
    reached: Counter[int] = field(default_factory=Counter)
    """Place → how often every earlier proposal had been kept, so that this one was decided on its own."""
    kept: Counter[int] = field(default_factory=Counter)
    drafters: Counter[str] = field(default_factory=Counter)
    """Drafter → proposals judged; with `drafters_kept` the acceptance of each link of a chain."""
    drafters_kept: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Stats:
        """The statistics of a whole reply at once."""
        stats = cls()
        for event in rounds:
            stats.add(event)
        return stats

    def add(self, event: Round) -> None:
        """Counts one more round."""
        self.rounds += 1
        self.largest_gamma = max(self.largest_gamma, event.gamma)
        self.emitted += len(event.tokens)
        self.drafted += event.drafted
        self.accepted += event.accepted
        self.target_forwards += event.target_forwards
        self.draft_forwards += event.draft_forwards
        self.draft_s += event.draft_s
        self.verify_s += event.verify_s
        self.sample_s += event.sample_s
        self.host_s += event.host_s
        self.elapsed_s = event.at
        if self.rounds == 1:
            self.first_tokens, self.first_token_s = len(event.tokens), event.at
        if event.prefill is not None:
            self.prefill = event.prefill
        self.origins.update(token.origin for token in event.tokens)
        if event.drafted:
            self._add_proposals(event)
        elif event.draft_forwards == 0:
            self.plain_rounds += 1
            self.plain_s += event.seconds

    def _add_proposals(self, event: Round) -> None:
        self.speculative_rounds += 1
        self.lengths[event.accepted] += 1
        self.drafters[event.drafter] += event.drafted
        self.drafters_kept[event.drafter] += event.accepted
        for place in range(event.drafted):
            self.offered[place] += 1
            self.reached[place] += place <= event.accepted
            self.kept[place] += place < event.accepted

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def mean_accepted_length(self) -> float:
        """accepted / rounds, 0…γ."""
        return _ratio(self.accepted, self.rounds)

    @property
    def tokens_per_round(self) -> float:
        """emitted / rounds, 1…γ+1."""
        return _ratio(self.emitted, self.rounds)

    @property
    def tok_per_s(self) -> float:
        """Decoding speed: tokens after the first round over the seconds after it (the prompt is not counted).

        A reply of a single round has nothing after it: then its tokens over that round's seconds.
        """
        if self.rounds > 1:
            return _ratio(self.emitted - self.first_tokens, self.elapsed_s - self.first_token_s)
        return _ratio(self.emitted, self.draft_s + self.verify_s + self.sample_s + self.host_s)

    def histogram(self, gamma: int | None = None) -> list[int]:
        """Rounds by accepted length 0…γ (at least up to the largest seen), rounds with a proposal only."""
        top = max([gamma or 0, *self.lengths])
        return [self.lengths[length] for length in range(top + 1)]

    def by_position(self) -> list[tuple[int, int, int]]:
        """For each place of the block: (offered, reached, kept). kept/reached is the conditional acceptance."""
        places = max(self.offered, default=-1) + 1
        return [(self.offered[i], self.reached[i], self.kept[i]) for i in range(places)]

    def time_split(self) -> dict[str, float]:
        """Seconds in drafting, verifying, sampling and everything else on the host, prompt reading excluded."""
        return {"draft": self.draft_s, "verify": self.verify_s, "sample": self.sample_s, "host": self.host_s}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
