"""One reply: messages to ids, rounds to text, on the calling thread. The worker's thread, or a terminal's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from specchat.chat.stream import ReplyStream
from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats
from specchat.jobs import Done, Event, Job, Reading, Step, Watch
from specchat.model.errors import readable, sentence
from specchat.yardstick import learn, note

if TYPE_CHECKING:
    from specchat.pair import Pair

log = logging.getLogger(__name__)


def reply(pair: Pair, job: Job, cancelled: Callable[[], bool], put: Callable[[Event], None]) -> Done:
    """Tells `put` what happens, round by round; whatever goes wrong is in what it returns."""
    settings = Watch(job.live)
    prompt = pair.template.encode(job.messages, job.system, pair.room(settings.last.max_new_tokens))
    put(Reading(len(prompt.ids), prompt.dropped_turns, prompt.notes))
    stream = ReplyStream(pair.tokenizer, pair.eos_ids, (*job.stop_strings, *prompt.stop_strings))
    stats, problem = Stats(), ""
    try:
        for event in pair.engine.generate(prompt.ids, settings, stream.stop, cancelled, job.compare_every):
            if isinstance(event, Round):
                stats.add(event)
                note(pair, event)
                put(Step(event, stream.pieces(event), settings.last))
            else:
                finished = event
    except Exception as caught:
        log.exception("the reply failed")
        problem = sentence(caught)
    if problem:
        finished = Finished("error", stats.emitted, stats.elapsed_s, 0, 0, problem)
    elif finished.reason == "error":
        finished = replace(finished, notice=readable(finished.notice))
    tail = stream.finish()
    learn(pair, stats)
    return Done(finished, stream.message(), stats, tail)
