"""A worker whose replies are written in advance: the real queue, handles and errors, no model.

The last user message chooses the script (see `SCRIPTS`); anything else gets the story. Words starting with
"fast" or "slow" in the message set the pace. Rounds are made up but keep the engine's rules.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import specchat.worker as worker_module
from specchat.chat.conversation import Message
from specchat.chat.stream import Piece
from specchat.decode.engine import Settings
from specchat.decode.events import Finished, Origin, Prefill, Reason, Rejected, Round, Token
from specchat.decode.stats import Stats
from specchat.pair import Memory
from specchat.worker import Done, Event, Job, Reading, Step, Worker

STORY = (
    "The keeper of the **Grey Point** light had not slept for two days.\n\nThe wind came from the north, and with "
    "it came the sea. He counted the beams: *one, two, three*, and then the dark. At midnight he heard a knock.\n\n"
    "> Who walks out here in such weather?\n\nHe opened the door and saw a girl with a lantern, and the lantern "
    "was dry. She said that the light had gone out, that it had been out for an hour, and that the boats were "
    "turning towards the rocks. He climbed the stairs, and there was no fire in the glass.\n"
)
CODE = (
    "Here is a function that counts words:\n\n```python\nfrom collections import Counter\n\n\ndef count_words(text: str) "
    '-> Counter[str]:\n    """How often each word occurs in the text."""\n    return Counter(text.lower().split())\n'
    "\n\nprint(count_words('a<b && b>a'))  # List<int>\n```\n\nUse `Counter.most_common(5)` for the top five:\n\n"
    "| word | times |\n|---|---|\n| the | 12 |\n| a | 7 |\n\n1. Read the file.\n2. Split it into words.\n3. Count them.\n"
)
HOSTILE = (
    '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script> ${window.pwned=3} {{constructor}} `x<y` '
    "List<int> <channel>analysis</channel> a<b &amp; done\n\n"
    "[press](javascript:window.pwned=4) ![pixel](http://203.0.113.7/pixel.png) <iframe src=http://203.0.113.7/></iframe> "
    "<style>body{display:none}</style>\n\n```html\n<img src=x onerror=alert(1)> List<int> &amp; </code></pre>"
    "<script>window.pwned=5</script>\n```\n\n\\`backslash\\` \\u{41} </div></div>\n"
)
LONG = "".join(
    f"## Part {n}\n\nThis is paragraph {n} of a long reply, with `code`, **bold words** and a list:\n\n- first point\n- second "
    "point, which is somewhat longer so that it has to be wrapped on a narrow screen\n\n" for n in range(1, 40)
)  # fmt: skip
SCRIPTS = {"story": STORY, "code": CODE, "hostile": HOSTILE, "long": LONG}

_SPLIT = re.compile(r"\s?\w+|\s?[^\w\s]+|\s+")


def words(text: str) -> list[str]:
    """A text cut into tokens as a subword tokenizer would; their sum is the text."""
    found = _SPLIT.findall(text)
    assert "".join(found) == text
    return found


@dataclass
class FakePair:
    """What the page reads of a pair, and a made-up way to answer."""

    target_name: str = "SmolLM2-135M-Instruct"
    draft_name: str = "spec-head 4M"
    precision: str = "float16 weights"
    notes: tuple[str, ...] = ()
    plain_step_s: float = 0.034
    plain_step_source: str = "measured at start (8 steps on a short text)"
    drafters: tuple[str, ...] = ("chain", "model", "ngram")
    round_s: float = 0.05
    plain_steps: list[float] = field(default_factory=list)
    target: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(device="cpu", vocab=600, ids=[], can_rollback=True)
    )
    seen: list[Job] = field(default_factory=list)
    used: list[Settings] = field(default_factory=list)
    """The settings that each round read."""
    acceptance: float = 0.75
    capacity: int = 8192
    number: int = field(default_factory=count(1).__next__)
    facts: None = None

    def __post_init__(self) -> None:
        spelled = sorted({word for text in SCRIPTS.values() for word in words(text)})
        self.vocab = {word: n for n, word in enumerate(spelled)}
        backend = Tokenizer(models.WordLevel(vocab=self.vocab, unk_token=spelled[0]))
        backend.decoder = decoders.Fuse()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)

    def memory(self) -> Memory:
        return Memory("RSS", 269_000_000, 8_400_000, 47_000_000, 911_000_000, 5_200_000_000)

    def answer(self, job: Job, cancelled: Callable[[], bool], put: Callable[[Event], None]) -> Done:
        """The counterpart of `specchat.reply.reply`."""
        self.seen.append(job)
        asked = job.messages[-1].content.lower()
        if "explode first" in asked:
            raise RuntimeError("The target returned logits that are not numbers.")
        text = next((text for name, text in SCRIPTS.items() if name in asked), STORY)
        began = time.perf_counter()
        speed = 0.05 if "fast" in asked else 4.0 if "slow" in asked else 1.0
        put(
            Reading(
                212,
                1 if "notes" in asked else 0,
                ("The oldest turn was left out.",) if "notes" in asked else (),
            )
        )
        time.sleep(0.3 * speed)
        return _Reply(self, job, text, self.round_s * speed, "explode" in asked, began).run(cancelled, put)


class _Reply:
    """One scripted reply: cuts its tokens into rounds by the settings in force."""

    def __init__(
        self, pair: FakePair, job: Job, text: str, round_s: float, explode: bool, began: float
    ) -> None:
        self.pair, self.job, self.tokens, self.round_s, self.explode = (
            pair,
            job,
            words(text),
            round_s,
            explode,
        )
        self.dice = random.Random(7)
        self.stats = Stats()
        self.began = began
        self.before = job.live.get()
        self.ids: list[int] = []

    def run(self, cancelled: Callable[[], bool], put: Callable[[Event], None]) -> Done:
        at, index, shown, reason = 0, 0, [], "eos"
        while at < len(self.tokens):
            if cancelled():
                reason = "cancelled"
                break
            settings = self.job.live.get()
            if len(self.ids) >= settings.max_new_tokens:
                reason = "length"
                break
            time.sleep(self.round_s)
            if self.explode and index == 6:
                raise RuntimeError("The target returned logits that are not numbers.")
            event, pieces = self.round(index, at, settings)
            put(Step(event, pieces, settings))
            shown += [piece.text for piece in pieces]
            at, index = at + len(pieces), index + 1
        ended: Reason = reason  # type: ignore[assignment]
        finished = Finished(
            ended, len(self.ids), time.perf_counter() - self.began, len(self.ids) + 212, len(self.ids)
        )
        return Done(finished, Message("assistant", "".join(shown), tuple(self.ids)), self.stats)

    def round(self, index: int, at: int, settings: Settings) -> tuple[Round, tuple[Piece, ...]]:
        self.pair.used.append(settings)
        left = min(settings.max_new_tokens - len(self.ids), len(self.tokens) - at)
        gamma = max(0, min(settings.gamma, left - 1))
        drafted = gamma if gamma and self.dice.random() < 0.9 else 0
        accepted = next((i for i in range(drafted) if self.dice.random() > self.pair.acceptance), drafted)
        texts = self.tokens[at : at + accepted + 1]
        last: Origin = "plain" if not drafted else "bonus" if accepted == drafted else "recovered"
        tokens = tuple(
            Token(self.pair.vocab[text], "accepted" if i < accepted else last, self.dice.uniform(0.1, 1.0),
                  self.dice.uniform(0.1, 1.0) if i < accepted else None, i)
            for i, text in enumerate(texts)
        )  # fmt: skip
        some = list(self.pair.vocab.values())
        turned_down = accepted < drafted
        rejected = Rejected(self.dice.choice(some), 0.02, 0.41, accepted) if turned_down else None
        event = Round(
            index, tokens, rejected, gamma, drafted, accepted, "model" if drafted else "", 1, drafted,
            0.004 * drafted, 0.036, 0.001, 0.0008, time.perf_counter() - self.began, settings != self.before,
            Prefill(180, 32, 0.21) if index == 0 else None,
            tuple(self.dice.choice(some) for _ in range(drafted - accepted - 1)) if turned_down else (),
        )  # fmt: skip
        self.before = settings
        self.stats.add(event)
        self.ids += [token.id for token in tokens]
        return event, tuple(Piece(text, token, index) for text, token in zip(texts, tokens, strict=True))


def fake_worker(
    pair: FakePair | None = None, loading: Sequence[str] = (), seconds: float = 0.0, fails: str = "",
    until: threading.Event | None = None,
) -> Worker:  # fmt: skip
    """A real Worker whose thread answers from scripts; loading takes `seconds` a message, or waits for `until`."""
    pair = pair or FakePair()

    def load(progress: Callable[[str], None]) -> FakePair:
        for message in loading:
            progress(message)
            time.sleep(seconds)
        if until is not None:
            until.wait(60)
        if fails:
            raise ValueError(fails)
        return pair

    return Worker(load)  # type: ignore[arg-type]


def answer_from_scripts() -> Callable[[], None]:
    """Lets `specchat.worker` ask a FakePair to answer; returns what puts the real way back."""
    real = worker_module.reply

    def reply(pair: object, job: Job, cancelled: Callable[[], bool], put: Callable[[Event], None]) -> Done:
        if isinstance(pair, FakePair):
            return pair.answer(job, cancelled, put)
        return real(pair, job, cancelled, put)  # type: ignore[arg-type]

    worker_module.reply = reply

    def back() -> None:
        worker_module.reply = real

    return back


__all__ = ["FakePair", "answer_from_scripts", "fake_worker", "words"]
