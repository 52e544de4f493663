"""The board of the race while there is nothing to compare yet: before, and while the lanes run. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from specchat.lab import suite
from specchat.lab.race import Began, Comparing, Lane, Lap, Run
from specchat.ui.panels import seconds
from specchat.ui.race_words import lane_line, law_line, rate

TAIL = 280
"""Characters of the text being written that are shown."""

INTRO = (
    '<div class="sc-race-intro"><h2>Race</h2><p>One prompt, the same loaded models, with speculation and without. The '
    "lanes run one after another, so that none slows the other, and are then replayed side by side.</p></div>"
)

LANE_C = '<div class="sc-race-card"><p>Speculation on, with settings of its own.</p></div>'

LANE_A = '<div class="sc-race-card"><h3>Lane A</h3><p>Speculation off: the target alone.</p></div>'


def examples() -> list[suite.Prompt]:
    """Two prompts of each category of the suite."""
    return suite.sample(suite.load(), 6)


def example_buttons(prompts: Sequence[suite.Prompt]) -> str:
    """Buttons that put an example into the box."""
    found = sorted(enumerate(prompts), key=lambda pair: pair[1].category)
    buttons = "".join(
        f'<button type="button" class="sc-race-example" data-act="example" data-n="{n}" title="{escape(prompt.text)}">'
        f"<b>{escape(prompt.category)}</b> {escape(_short(prompt.text))}</button>"
        for n, prompt in found
    )
    return f'<div class="sc-race-examples" role="group" aria-label="Examples">{buttons}</div>'


def _short(text: str, most: int = 30) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rsplit(" ", 1)[0] + " …"


def lane_b(settings: str) -> str:
    """Lane B's card. settings: of the sidebar, in words; or a sentence that says why it cannot run."""
    return (
        f'<div class="sc-race-card"><h3>Lane B</h3><p>Speculation on, as set in the sidebar: '
        f"{escape(settings)}.</p></div>"
    )


def empty() -> str:
    """The board before the first race."""
    return (
        '<div class="sc-race-empty"><p>Nothing has been run yet. A race of two lanes takes about twice as long as one '
        "reply, plus a short warm-up of each. Afterwards you see, for each lane, the time to the first token, tokens "
        "a second and tokens a round, how much faster it was, and where the texts part, with the reason. The chat stays "
        "as it is, but its next message is read again from the first word.</p></div>"
    )


@dataclass(slots=True)
class Board:
    """A race while it runs: what the page knows from the news so far."""

    lanes: tuple[Lane, ...]
    repeats: int
    now: Began | None = None
    lap: Lap | None = None
    text: str = ""
    comparing: bool = False
    finished: list[Run] = field(default_factory=list)

    def take(self, news: object) -> None:
        """Adds one piece of news."""
        if isinstance(news, Began):
            self.now, self.lap, self.text = news, None, ""
        elif isinstance(news, Lap):
            self.lap, self.text = news, (self.text + news.text)[-2 * TAIL :]
        elif isinstance(news, Run):
            self.finished.append(news)
            self.lap = None
        elif isinstance(news, Comparing):
            self.comparing, self.now, self.lap = True, None, None

    def status(self) -> str:
        """What is running, for the status line: it changes with the run, not with every token."""
        if self.comparing:
            return "Comparing the texts"
        if self.now is None:
            return "Starting"
        name = self.lanes[self.now.lane].name
        if self.now.warming:
            return f"Warming up lane {name} (not counted)"
        again = f", repeat {self.now.repeat + 1} of {self.repeats}" if self.repeats > 1 else ""
        return f"Running lane {name}{again} (run {self.now.done + 1} of {self.now.runs})"

    def html(self) -> str:
        """A card for each lane: waiting, running with its live speed and text, or finished."""
        cards = "".join(self._card(lane) for lane in range(len(self.lanes)))
        return (
            f'<div class="sc-race-lanes" data-count="{len(self.lanes)}" aria-label="Lanes of the running race">'
            f"{cards}</div>"
        )

    def _card(self, lane: int) -> str:
        done = [run for run in self.finished if run.lane == lane]
        running = self.now is not None and self.now.lane == lane
        lap = self.lap if running else None
        number, under, text = "–", "waits for its turn", ""
        if lap is not None:
            number = rate(lap.tok_per_s) if lap.emitted > 1 else "–"
            under = f"{lap.emitted} tokens, {seconds(lap.at)}"
            text = self.text[-TAIL:]
        elif done:
            number, under = rate(done[-1].stats.tok_per_s), f"{done[-1].stats.emitted} tokens, finished"
        state = "waiting" if not done else "finished"
        if running and self.now is not None:
            state = "warming up" if self.now.warming else "running now"
            under = under if lap is not None or (done and not self.now.warming) else "reading the prompt"
        share = len(done) / self.repeats
        name, line = self.lanes[lane].name, lane_line(self.lanes[lane].settings)
        look = "sc-target" if not self.lanes[lane].settings.gamma else "sc-draft"
        return (
            f'<article class="sc-race-lane" data-state="{escape(state)}"><header><h3>Lane {escape(name)} '
            f'<span class="sc-race-state">{escape(state)}</span></h3><p class="sc-race-line">{escape(line)}</p>'
            f'<p class="sc-race-now"><b>{number}</b> tok/s</p><p class="sc-race-count">{escape(under)}</p>'
            f'<div class="sc-race-track" title="{len(done)} of {self.repeats} runs finished">'
            f'<i class="{look}" style="width:{share * 100:.0f}%"></i></div></header>'
            f'<div class="sc-race-tail"><div>{escape(text)}</div></div></article>'
        )


def shared_line(lanes: Sequence[Lane], seed: int | None = None) -> str:
    """What all lanes have in common."""
    first = lanes[0].settings
    parts = [law_line(first.sampling), f"{first.max_new_tokens} tokens at most"]
    if seed is not None:
        parts.append(f"seed {seed}")
    return "All lanes: " + ", ".join(parts) + "."
