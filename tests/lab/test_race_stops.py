"""A race ends its replies where the chat would: at the stop strings too."""

from __future__ import annotations

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.lab.measure import prompt_ids
from specchat.lab.race import Lane, plain, race
from tests.fakes import Script, writes
from tests.tiny import TINY_VOCAB
from tests.worker.jobs import TOKENIZER, pair_of

ON = Settings(4, Sampling(0.0), "model", 64)


def test_every_lane_ends_at_a_stop_string_which_is_not_shown():
    said = TOKENIZER("The sea is wide.\nUser: and then? And it goes on.", add_special_tokens=False)[
        "input_ids"
    ]
    prompt = prompt_ids(pair_of(), "hello")
    law = writes(said, len(prompt), TINY_VOCAB)
    pair = pair_of(Script(law, TINY_VOCAB), Script(law, TINY_VOCAB))
    lanes = [Lane("A", plain(ON)), Lane("B", ON)]
    found = race(pair, prompt, lanes, 1, lambda: False, lambda event: None, ("\nUser:",))
    assert found.problem == ""
    assert [run.text for run in found.runs] == ["The sea is wide."] * 2
    assert {run.sample.finished.reason for run in found.runs if run.sample.finished} == {"stop"}
    assert [c.verdict for c in found.comparisons] == ["identical"]
    on = race(pair, prompt, lanes, 1, lambda: False, lambda event: None)
    assert all(len(run.text) > len("The sea is wide.") for run in on.runs)
