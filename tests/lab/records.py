"""Records for tests: made by hand, and drawn at random within the engine's rules."""

from __future__ import annotations

from hypothesis import strategies as st

from specchat.decode.events import Finished, Prefill, Rejected, Round, Token
from specchat.lab.record_parts import Beat, Change, Head, MemoryFacts, PairFacts, Record, Said

SETTINGS = {
    "gamma": 4,
    "sampling": {"temperature": 0.6, "top_k": 20, "top_p": 1.0, "min_p": 0.0, "seed": 7},
    "drafter": "model",
    "max_new_tokens": 64,
}
HOSTILE = (
    '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script></style>"\'&amp; ${1+1} {{x}}\x1b[2J'
)


def beat(
    index: int,
    texts: tuple[str, ...],
    at: float,
    gamma: int = 4,
    changed: bool = False,
    turned_down: str = "",
) -> Beat:
    """A round whose texts but the last were accepted; turned_down: the text of a rejected proposal."""
    accepted = len(texts) - 1
    drafted = 0 if not gamma else min(gamma, accepted + (1 if turned_down else 0))
    last = "plain" if not drafted else "recovered" if turned_down else "bonus"
    tokens = tuple(
        Token(10 + i, "accepted" if i < accepted else last, 0.5, 0.25 if i < accepted else None, i)  # type: ignore[arg-type]
        for i in range(len(texts))
    )
    event = Round(
        index, tokens, Rejected(99, 0.01, 0.6, accepted) if turned_down else None, gamma, drafted, accepted,
        "model" if drafted else "", 1, drafted, 0.002 * drafted, 0.03, 0.001, 0.0005, at, changed,
        Prefill(3, 9, 0.05) if index == 0 else None,
    )  # fmt: skip
    return Beat(event, texts, (turned_down,) if turned_down else ())


def record(
    words: str = "The keeper had not slept for two days .", gamma: int = 4, step: float = 0.1
) -> Record:
    """Two words a round, a rejection in every third; without γ a word a round."""
    parts = [f"{word} " for word in words.split(" ")]
    size = 2 if gamma else 1
    blocks = [tuple(parts[i : i + size]) for i in range(0, len(parts), size)]
    beats = tuple(
        beat(n, block, (n + 1) * step, gamma, turned_down="nope" if gamma and n % 3 == 1 else "")
        for n, block in enumerate(blocks)
    )
    pair = PairFacts(
        "target-135M", "head-4M", "cpu", "float16 weights", ("A note.",), 0.04, "measured at start (8 steps)",
        MemoryFacts("RSS", 10, 2, 3, 40, 50),
    )  # fmt: skip
    head = Head(
        "2026-11-30T15:30:12+01:00", pair, {**SETTINGS, "gamma": gamma}, (Said("user", "Tell a story."),), "Be brief.",
        ("END",), 12, 0, {"torch": "2.13.0"}, {"cores": 2, "threads": 1, "machine": "x86_64"},
    )  # fmt: skip
    emitted = len(parts)
    return Record(head, beats, (), Finished("eos", emitted, len(beats) * step + 0.01, emitted, emitted), "")


def slowly(one: Record) -> Record:
    """The same with other settings from its second round on."""
    from dataclasses import replace

    beats = list(one.beats)
    beats[1] = replace(beats[1], round=replace(beats[1].round, settings_changed=True))
    return replace(one, beats=tuple(beats), changes=(Change(1, {**SETTINGS, "gamma": 2}),))


_times = st.floats(0, 1e6)
_chances = st.floats(0, 1)
_ids = st.integers(0, 2**31)
_texts = st.text(max_size=12)
_names = st.text(max_size=20)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    _names,
)
_values = st.dictionaries(
    _names.filter(lambda name: name not in ("gamma", "sampling", "max_new_tokens")), _scalars, max_size=4
)


@st.composite
def _beats(draw: st.DrawFn) -> tuple[Beat, ...]:
    ends = sorted(draw(st.lists(_times, max_size=5)))
    beats = []
    for n, at in enumerate(ends):
        gamma = draw(st.integers(0, 8))
        drafted = draw(st.integers(0, gamma))
        accepted = draw(st.integers(0, drafted))
        count = accepted + draw(st.integers(0 if accepted else 1, 1))
        tokens = tuple(
            Token(draw(_ids), draw(st.sampled_from(["accepted", "recovered", "bonus", "plain"])), draw(_chances),
                  draw(st.one_of(st.none(), _chances)), i)
            for i in range(count)
        )  # fmt: skip
        rejected = draw(
            st.one_of(st.none(), st.builds(Rejected, _ids, _chances, _chances, st.integers(0, 8)))
        )
        prefill = draw(st.one_of(st.none(), st.builds(Prefill, _ids, _ids, _times)))
        discarded = tuple(draw(st.lists(_ids, max_size=3)))
        event = Round(
            n, tokens, rejected, gamma, drafted, accepted, draw(_names), 1, drafted, draw(_times), draw(_times),
            draw(_times), draw(_times), at, draw(st.booleans()), prefill, discarded,
        )  # fmt: skip
        texts = tuple(draw(st.lists(_texts, min_size=count, max_size=count)))
        beats.append(Beat(event, texts, tuple(draw(st.lists(_texts, max_size=3)))))
    return tuple(beats)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record that a reply could have left."""
    beats = draw(_beats())
    settings = st.builds(lambda values, gamma: {**values, "gamma": gamma}, _values, st.integers(0, 16))
    rounds = draw(st.sets(st.integers(0, max(0, len(beats) - 1)), max_size=2)) if beats else set()
    changes = tuple(Change(n, draw(settings)) for n in sorted(rounds))
    sizes = st.integers(0, 2**50)
    pair = draw(
        st.builds(
            PairFacts, _names, _names, _names, _names, st.tuples(_names), _times, _names,
            st.one_of(st.none(), st.builds(MemoryFacts, _names, sizes, sizes, sizes, sizes, sizes)),
        )
    )  # fmt: skip
    said = st.builds(Said, _names, _texts)
    head = Head(
        draw(_names), pair, draw(settings), tuple(draw(st.lists(said, max_size=3))), draw(_texts),
        tuple(draw(st.lists(_names, max_size=2))), draw(_ids), draw(_ids), draw(_values), draw(_values),
    )  # fmt: skip
    reasons = st.sampled_from(["eos", "stop", "length", "context", "cancelled", "error"])
    finished = draw(st.builds(Finished, reasons, _ids, _times, _ids, _ids, _texts))
    return Record(head, beats, changes, finished, draw(_texts))
