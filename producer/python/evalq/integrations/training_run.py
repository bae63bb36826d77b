"""The submits and results of one training on rank 0, shared by the callbacks of all frameworks.

No call raises because of evalq, and only last() waits. Not thread-safe.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .. import _training_guard
from .._variant_names import curve, curves
from ..client import Client
from ..result import Result
from .quiet_client import QuietClient
from .held_checkpoints import HeldCheckpoints
from .due_evaluations import Evaluation, DueEvaluations

log = logging.getLogger("evalq")

_POLL_SECONDS = 0.05  # Between two checks for new results.
_AWAY_SECONDS = 30.0  # At the end, give up if Redis has not answered for so long.
_HINT_SECONDS = 120.0
_WAITING_SECONDS = 10.0


class TrainingRun:
    """One training. suites and variant are the same for all its checkpoints.

    client() opens the client; name(result) gives a metric's name in the training's logs; last()
    waits at most wait seconds; pending is what pending() returned in an earlier session of the run.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        suites: Sequence[str],
        variant: str,
        name: Callable[[Result], Optional[str]],
        wait: float,
        hold_seconds: float,
        pending: Iterable[Any] = (),
    ) -> None:
        _training_guard.refuse_in_evaluator()
        self.suites = list(suites)
        self.variant = variant
        self.held = HeldCheckpoints()
        self._client = QuietClient(client)
        self._evaluations = DueEvaluations(name, hold_seconds, since_ms=int(time.time() * 1000))
        self._evaluations.restore(pending)
        self._wait = wait
        self._due_at: Dict[int, float] = {step: time.monotonic() for step in self.pending_steps()}
        self._submitted_at = math.inf  # When the newest due step was submitted; inf: not yet.
        self._polled_at = -math.inf
        self._seen: Set[str] = set()  # Suites that have results.
        self._hinted = False
        self._reached_at = 0.0
        self._warned_waiting = False
        self._last_due = -1
        self._between: Set[int] = set()  # Steps that only submit_newest() submitted.

    # -- submitting

    def open(self) -> str:
        """Opens the client and starts reading results. Returns the run's name in the queue."""
        self._client.open()
        self._client.drain()
        if self._client.run:
            log.info("run %s: follow it with `evalq watch %s`", self._client.run, self._client.run)
        return self._client.run

    def due(self, step: int, epoch: Optional[float]) -> None:
        """Notes that this step will be submitted."""
        self._last_due = step
        self._between.discard(step)
        self._evaluations.due(step, self.suites, self.variant, epoch)
        self._due_at[step] = time.monotonic()
        self._submitted_at = math.inf

    def submit(self, path: str, step: int, epoch: Optional[float], **options: Any) -> bool:
        """Submits a checkpoint that was saved or is being saved, in microseconds."""
        self.due(step, epoch)
        held = self.held.take(step, path)  # Keep it first, because libevalq pins the kept copy.
        accepted = self._client.submit(
            path, step, self.suites, variant=self.variant, epoch=epoch, held=held, **options
        )
        if not accepted:
            self.held.release(step)
        return self._submitted(step, accepted)

    def submit_state_dict(
        self, state: Mapping[str, Any], step: int, epoch: Optional[float], **options: Any
    ) -> bool:
        """Submits weights that are not saved. Takes as long as one copy to host memory."""
        self.due(step, epoch)
        accepted = self._client.submit_state_dict(
            state, step, self.suites, variant=self.variant, epoch=epoch, **options
        )
        return self._submitted(step, accepted)

    def submit_newest(
        self,
        state: Callable[[], Mapping[str, Any]],
        step: int,
        epoch: Optional[float],
        **options: Any,
    ) -> None:
        """Submits the weights of a step that is not due, if a worker is idle; otherwise returns in
        microseconds. state is called only if a worker is idle."""
        if step <= 0 or step == self._last_due:
            return
        for suite in self.suites:  # A worker may be idle for one of the suites only.
            if self._client.submit_state_dict(
                state, step, [suite], when="idle", variant=self.variant, epoch=epoch, **options
            ):
                self._between.add(step)
                self._evaluations.due(step, [suite], self.variant, epoch)

    def is_between(self, step: int) -> bool:
        """Whether only submit_newest() submitted the step. Its metrics are logged but decide
        nothing, because the number of such evaluations depends on the workers."""
        return step in self._between

    def reserve_state_dict(self, state: Mapping[str, Any]) -> None:
        """Allocates memory for such weights, so that the first submit takes no longer than later
        ones."""
        self._client.reserve_state_dict(state)

    def _submitted(self, step: int, accepted: bool) -> bool:
        if not accepted:
            self.forget(step)
        self._submitted_at = time.monotonic()
        return accepted

    def forget(self, step: int) -> None:
        """Drops a due step that will not be submitted."""
        self._evaluations.forget(step, self.suites, self.variant)
        self._due_at.pop(step, None)

    def pending(self) -> List[Tuple[int, str, str, Optional[float]]]:
        """(step, suite, variant, epoch) of the open evaluations, in a form for JSON."""
        return [each for each in self._evaluations.pending() if not self.is_between(each[0])]

    def pending_steps(self) -> List[int]:
        """The steps with open evaluations."""
        return sorted({each[0] for each in self._evaluations.pending()})

    def is_pending(self, step: int) -> bool:
        """Whether an evaluation of the step is open."""
        return self._evaluations.is_pending(step)

    # -- results

    def look(self, now: bool = False) -> List[Evaluation]:
        """The evaluations that are ready. Cheap enough for every step. now: check even if the last
        check was just before."""
        moment = time.monotonic()
        if not now and moment - self._polled_at < _POLL_SECONDS:
            return []
        self._polled_at = moment
        return self._arrivals()

    def last(self, began: float, seconds: float) -> Tuple[List[Evaluation], bool]:
        """Returns ready evaluations, and whether these were the last. Waits at most seconds, and at
        most wait seconds since began (monotonic)."""
        until = time.monotonic() + seconds
        deadline = began + self._wait
        self._reached_at = max(self._reached_at, began)
        while True:
            ready = self._arrivals()
            left = len(self._evaluations.pending())
            if ready or left == 0:
                return ready, left == 0
            if time.monotonic() >= deadline:
                return self._give_up("the limit of %g s passed" % self._wait)
            if self._client.ended(min(0.25, max(0.01, deadline - time.monotonic()))):
                self._take()
                self._evaluations.accept_older()
                return self._give_up("the queue has nothing open")
            if self._client.reachable:
                self._reached_at = time.monotonic()
            elif time.monotonic() - self._reached_at > _AWAY_SECONDS:
                return self._give_up("the queue does not answer")
            self._warn_waiting(began, deadline, left)
            if time.monotonic() > until:
                return [], False

    def settle(self, step: int, keep: bool = False) -> None:
        """Call it after the step's results were used. keep: the step is the best so far and may
        have to be put back."""
        if not keep and not self.is_pending(step):
            self.held.release(step)

    def close(self) -> None:
        """Sends what is ready, within a second."""
        self._client.close()
        self.held.release_all()

    def _take(self) -> None:
        for result in self._client.drain():
            ours = curve(self.variant) in curves(result.variant)
            self._evaluations.take(result, self.variant if ours else result.variant)

    def _arrivals(self, flush: bool = False) -> List[Evaluation]:
        self._take()
        if self._evaluations.older_waits and self._client.ended_since(self._submitted_at):
            self._take()  # The results of everything that had ended are here now.
            self._evaluations.accept_older()
        ready = self._evaluations.ready(flush)
        for evaluation in ready:
            self._seen.add(evaluation.suite)
            self._due_at.pop(evaluation.step, None)
        self._hint()
        return ready

    def _give_up(self, why: str) -> Tuple[List[Evaluation], bool]:
        ready = self._arrivals(flush=True)
        left = self._evaluations.give_up()
        if left:
            steps = sorted({each[0] for each in left})
            log.log(
                # If submits are unsent, libevalq has already warned.
                logging.INFO if self._client.unsent else logging.WARNING,
                "%d evaluation%s not come (%s): steps %s. To see why: evalq show %s. evalq-logger"
                " records what still comes; see `evalq results %s`",
                len(left),
                " has" if len(left) == 1 else "s have",
                why,
                ", ".join(map(str, steps[:8])) + ("..." if len(steps) > 8 else ""),
                self._job(left[0]),
                self._client.run,
            )
        return ready, True

    def _hint(self) -> None:
        """Warns once if a suite has no results for a long time: perhaps no worker offers it."""
        if self._hinted or not self._due_at:
            return
        if time.monotonic() - min(self._due_at.values()) < _HINT_SECONDS:
            return
        late = [each for each in self._evaluations.pending() if each[1] not in self._seen]
        if late:
            self._hinted = True
            log.warning(
                "suite %s has no results yet, after %d s. To see why: evalq show %s",
                late[0][1],
                _HINT_SECONDS,
                self._job(late[0]),
            )

    def _warn_waiting(self, began: float, deadline: float, left: int) -> None:
        now = time.monotonic()
        if not self._warned_waiting and now - began > _WAITING_SECONDS:
            self._warned_waiting = True
            log.warning(
                "training is done; %d evaluation%s still open. This process ends as soon as they"
                " have, or after another %.0f s (wait=0 leaves them to evalq-logger). To see why:"
                " evalq show %s",
                left,
                " is" if left == 1 else "s are",
                deadline - now,
                self._job(self._evaluations.pending()[0]),
            )

    def _job(self, pending: Tuple[int, str, str, Optional[float]]) -> str:
        return f"{self._client.run}/{pending[0]}/{pending[2]}/{pending[1]}"
