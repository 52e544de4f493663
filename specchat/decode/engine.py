"""The engine: rounds of draft, verify, verdict, until something ends the reply.

Knows ids and laws only. The one invariant between rounds, for target and draft alike:
cached = committed - pending, with pending ≥ 1 (the last id is always fed with the next round).

A round makes the host wait for the device once, when it reads the verdict. (More often where a confidence stop must
see every proposal, a draft's law was broken, a drafter reads what it missed, or it sits on another device.) Until
then it knows drafted ids by their number alone, and both caches' lists have `UNKNOWN` in their places.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from specchat.decode.adaptive import Adaptive
from specchat.decode.clock import clock_for
from specchat.decode.drafters import Drafter, Forward, Proposal, device_of, read_prompt, reuse
from specchat.decode.events import Finished, Prefill, Reason, Round
from specchat.decode.guard import COMPARING
from specchat.decode.ids import joined
from specchat.decode.pilot import Pilot
from specchat.decode.request import Request
from specchat.decode.sampling import BadLogits, Sampling, law_of
from specchat.decode.settings import MAX_GAMMA as MAX_GAMMA
from specchat.decode.settings import Settings as Settings
from specchat.decode.stopping import Confident, Stopping
from specchat.decode.verdict import judge, read

log = logging.getLogger(__name__)


class Engine:
    """One target and the drafters that may propose for it. Not thread-safe: one generate at a time."""

    def __init__(self, target: Forward, drafters: Mapping[str, Drafter], eos_ids: frozenset[int]) -> None:
        self.target = target
        self.drafters = dict(drafters)
        self.eos_ids = eos_ids
        self.pilots: dict[str, Pilot] = {}
        """By the drafter's name: what chooses γ by measurements. It outlives a request."""

    def generate(
        self,
        prompt_ids: Sequence[int],
        settings: Callable[[], Settings],
        stop: Callable[[int], bool] = lambda token: False,
        cancelled: Callable[[], bool] = lambda: False,
        compare_every: int = 0,
    ) -> Iterator[Round | Finished]:
        """Yields one Round per round, then one Finished.

        stop is told every emitted id in order and says whether it completed a stop string; cancelled is asked between
        rounds. compare_every: of so many rounds one is plain, so that there is a plain step of the same moment and text
        to compare with (0: none; a guard sees to that itself). An exception in the target ends with Finished("error");
        one in a drafter goes on plainly with a notice. Whatever happens, both caches end up holding nothing but
        committed ids.
        """
        now = settings()
        rng, began = self._rng(now.sampling), time.perf_counter()
        request = Request(list(prompt_ids), len(prompt_ids), stop, cancelled, rng, now, began, compare_every)
        try:
            yield from self._rounds(request, settings)
        finally:
            self._settle(request)

    def _rounds(self, request: Request, settings: Callable[[], Settings]) -> Iterator[Round | Finished]:
        """Prefill, then rounds until a reason to end; turns an exception into Finished("error")."""
        reason: Reason | None = "context" if len(request.committed) > self.target.capacity else None
        while reason is None:
            error, event = "", None
            try:
                if request.rounds == 0:
                    self._read(request)
                now = settings()
                reason = self._end(request, now)
                if reason is None:
                    event, reason = self.round(request, now)
            except Exception as problem:
                # Only the sentence is kept: the exception would pin its frames, and with them their tensors.
                log.exception("the target failed")
                error = str(problem) or type(problem).__name__
            if error:
                yield self._finish(request, "error", error)
                return
            if event is not None:
                yield event
        yield self._finish(request, reason, " ".join(request.notices))

    @torch.inference_mode()
    def round(self, request: Request, settings: Settings) -> tuple[Round, Reason | None]:
        """One draft phase, one target forward, one verdict (Leviathan et al. 2023)."""
        began = time.perf_counter()
        changed = self._apply(request, settings)
        committed, sampling = request.committed, settings.sampling
        pilot = self._pilot(settings, request)
        wished, choice = pilot.choose(settings) if pilot else (settings.gamma, "")
        gamma = self._clip(wished, settings, request)
        if gamma and request.compares(settings) and self._wanted(request, settings) is not None:
            wished, gamma, choice = 0, 0, COMPARING

        device = request.rng.device
        clock = clock_for(device)
        clock.mark()
        stopping = pilot.stopping(settings) if pilot else Confident(settings.confidence)
        draft = self._propose(request, gamma, wished, stopping)
        if settings.adaptive and pilot:
            # What it came to: the block was stopped where it no longer paid.
            gamma = max(len(draft.ids), min(1, gamma))
        clock.mark()
        cached = len(self.target.ids)
        logits = self.target.forward(joined(committed[cached:], draft.ids))
        clock.mark()
        p = law_of(logits[-len(draft.ids) - 1 :].to(device), committed, sampling, draft.ids)
        packed = judge(p, draft, request.rng)
        clock.mark()
        verdict = read(packed)  # the round's one wait for the device
        if not verdict.draft_sound:
            self._drop_drafter(request, BadLogits())
            self.target.rollback(len(draft.ids))
            draft = Proposal(forwards=draft.forwards)
            verdict = read(judge(p.first(1), draft, request.rng))
        if not verdict.sound:
            raise BadLogits
        self.target.ids[cached:] = [*committed[cached:], *verdict.drafted]

        kept, reason = self._cut(verdict.block, request, settings)
        committed.extend(verdict.block[:kept])
        self.target.rollback(len(self.target.ids) - (len(committed) - 1))
        if request.drafter is not None:
            self._commit(request, verdict.block[:kept], verdict.drafted)
        ended_inside = kept <= verdict.accepted
        draft_s, verify_s, sample_s = clock.seconds()
        prefill, request.prefill = request.prefill, None
        request.rounds += 1
        now = time.perf_counter()
        event = Round(
            index=request.rounds - 1,
            tokens=verdict.tokens(kept),
            rejected=None if ended_inside else verdict.rejected(),
            gamma=gamma,
            drafted=kept if ended_inside else len(draft.ids),
            accepted=min(verdict.accepted, kept),
            drafter=draft.source,
            target_forwards=1,
            draft_forwards=draft.forwards,
            draft_s=draft_s,
            verify_s=verify_s,
            sample_s=sample_s,
            host_s=max(0.0, now - began - draft_s - verify_s - sample_s),
            at=now - request.began,
            settings_changed=changed,
            prefill=prefill,
            discarded=() if ended_inside else verdict.drafted[verdict.accepted + 1 :],
            choice=choice,
        )
        if pilot:
            pilot.learn(event)
        return event, reason

    # -- the parts of a round -------------------------------------------------------------------

    def _apply(self, request: Request, settings: Settings) -> bool:
        """Takes over settings that changed since the last round; says whether any did."""
        before = request.settings
        request.settings = settings
        if settings.sampling.seed != before.sampling.seed:
            request.rng = self._rng(settings.sampling)
        return settings != before

    def _wanted(self, request: Request, settings: Settings) -> Drafter | None:
        """The drafter that these settings ask for; none at γ = 0, so that plain decoding pays for no draft."""
        if settings.gamma == 0 or settings.drafter in request.broken:
            return None
        return self.drafters.get(settings.drafter)

    def _pilot(self, settings: Settings, request: Request) -> Pilot | None:
        """Who chooses γ: nobody when it is fixed, or when there is nothing to choose."""
        if not (settings.adaptive or settings.guard) or not self.target.can_rollback:
            return None
        if self._wanted(request, settings) is None:
            return None
        looks = device_of(self.target).type == "cpu"
        return self.pilots.setdefault(settings.drafter, Pilot(Adaptive(looks)))

    def _clip(self, gamma: int, settings: Settings, request: Request) -> int:
        """γ, less what the budget and the context leave room for: the target always adds one id itself."""
        if not self.target.can_rollback:
            return 0
        left = min(
            settings.max_new_tokens - request.emitted, self.target.capacity - len(request.committed) + 1
        )
        return max(0, min(gamma, left - 1))

    def _propose(self, request: Request, gamma: int, wished: int, stopping: Stopping) -> Proposal:
        wanted = self._wanted(request, request.settings)
        # One that rests is told what is committed, if it was in use; it reads it when it is asked again.
        if wanted is not request.drafter and (wished or request.drafter is not None):
            # Chosen just now: it reads what it missed, and that is time of drafting.
            request.drafter = wanted
            self._start_drafter(request)
        if gamma == 0 or request.drafter is None or request.cancelled():
            return Proposal()
        settings = request.settings
        sampling = settings.draft_sampling or settings.sampling
        try:
            return request.drafter.propose(gamma, sampling, request.rng, stopping)
        except Exception as problem:
            self._drop_drafter(request, problem)
            return Proposal()

    def _cut(self, block: Sequence[int], request: Request, settings: Settings) -> tuple[int, Reason | None]:
        """How many ids of the block are emitted, and whether one of them ends the reply."""
        for i, token in enumerate(block):
            if token in self.eos_ids:
                return i + 1, "eos"
            if request.stop(token):
                return i + 1, "stop"
            if request.emitted + i + 1 >= settings.max_new_tokens:
                return i + 1, "length"
        return len(block), None

    def _end(self, request: Request, settings: Settings) -> Reason | None:
        """A reason not to begin another round."""
        if request.cancelled():
            return "cancelled"
        if request.emitted >= settings.max_new_tokens:
            return "length"
        return "context" if len(request.committed) > self.target.capacity else None

    # -- caches ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def _read(self, request: Request) -> None:
        """Brings both caches to the prompt, reading only what they do not hold already."""
        if not request.committed:
            raise ValueError("The prompt is empty: there is nothing to continue.")
        began = time.perf_counter()
        reused = reuse(self.target, request.committed)
        fed = read_prompt(self.target, request.committed, request.go_on)
        pilot = self._pilot(request.settings, request)
        if not (pilot and pilot.rests(request.settings)):
            request.drafter = self._wanted(request, request.settings)
            self._start_drafter(request)
        request.prefill = Prefill(reused, fed, time.perf_counter() - began)
        if not self.target.can_rollback and request.settings.gamma:
            request.notices.append(
                "This model's state cannot be rolled back, so it decodes without speculation."
            )

    def _start_drafter(self, request: Request) -> None:
        if request.drafter is None or not self.target.can_rollback:
            return
        try:
            request.drafter.start(request.committed, request.go_on)
        except Exception as problem:
            self._drop_drafter(request, problem)

    def _commit(self, request: Request, ids: Sequence[int], drafted: Sequence[int] = ()) -> None:
        assert request.drafter is not None
        try:
            request.drafter.commit(ids, drafted)
        except Exception as problem:
            self._drop_drafter(request, problem)

    def _drop_drafter(self, request: Request, problem: Exception) -> None:
        """The reply goes on without a drafter that failed (another may be chosen); the next request tries it again."""
        log.error("the drafter failed", exc_info=problem)
        assert request.drafter is not None
        request.drafter.reset()
        request.broken.add(request.settings.drafter)
        request.drafter = None
        request.notices.append(
            f"The draft failed ({problem or type(problem).__name__}); the reply went on without it."
        )

    def _settle(self, request: Request) -> None:
        """After any end, also an exception's: nothing but committed ids stays cached."""
        reuse(self.target, request.committed)
        if request.drafter is not None:
            self._commit(request, ())

    def _finish(self, request: Request, reason: Reason, notice: str) -> Finished:
        self._settle(request)
        draft_cached = request.drafter.cached() if request.drafter is not None else 0
        seconds = time.perf_counter() - request.began
        return Finished(reason, request.emitted, seconds, len(self.target.ids), draft_cached, notice)

    def _rng(self, sampling: Sampling) -> torch.Generator:
        device = device_of(self.target)
        # Drawing sums in float64, which Apple's GPU does not have: there the verdict falls on the CPU.
        rng = torch.Generator(device="cpu" if device.type == "mps" else device)
        if sampling.seed is None:
            rng.seed()
        else:
            rng.manual_seed(sampling.seed)
        return rng
