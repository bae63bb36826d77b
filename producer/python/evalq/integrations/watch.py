"""The submits and results of one training, on rank 0: what the adapters of all frameworks share.

No call raises for reasons of evalq's, none but last() waits. Not for sharing between threads.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .._variant import curve, curves
from ..client import Client
from ..result import Result
from .feed import Feed
from .held import Held
from .ledger import Evaluation, Ledger

log = logging.getLogger("evalq")

_POLL_SECONDS = 0.05  # Between looks at what the client's thread has brought.
_AWAY_SECONDS = 30.0  # A Redis that does not answer is not waited for at the end.
_HINT_SECONDS = 120.0
_WAITING_SECONDS = 10.0


class Watch:
    """One training as evalq sees it. suites and variant are the same for each of its checkpoints.

    client() opens the client; name(result) gives a metric's name in training's logs; wait is how many seconds
    last() waits at most; pending is what pending() gave to an earlier life of the run.
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
        self.suites = list(suites)
        self.variant = variant
        self.held = Held()
        self._feed = Feed(client)
        self._ledger = Ledger(name, hold_seconds, since_ms=int(time.time() * 1000))
        self._ledger.restore(pending)
        self._wait = wait
        self._due_at: Dict[int, float] = {step: time.monotonic() for step in self.pending_steps()}
        self._submitted_at = math.inf  # Of the newest that is due; not yet: later than all.
        self._polled_at = -math.inf
        self._seen: Set[str] = set()  # Suites of which something came.
        self._hinted = False
        self._reached_at = 0.0
        self._said_waiting = False
        self._last_due = -1
        self._between: Set[int] = set()  # Steps that only submit_newest() submitted.

    # -- out

    def open(self) -> str:
        """Opens the client and begins to read results; the run's name as the queue has it."""
        self._feed.open()
        self._feed.drain()
        if self._feed.run:
            log.info("run %s: follow it with `evalq watch %s`", self._feed.run, self._feed.run)
        return self._feed.run

    def due(self, step: int, epoch: Optional[float]) -> None:
        """A submit of this step follows."""
        self._last_due = step
        self._between.discard(step)
        self._ledger.due(step, self.suites, self.variant, epoch)
        self._due_at[step] = time.monotonic()
        self._submitted_at = math.inf

    def submit(self, path: str, step: int, epoch: Optional[float], **options: Any) -> bool:
        """A checkpoint that was saved, or is being saved. Microseconds."""
        self.due(step, epoch)
        held = self.held.take(step, path)  # First: what is held is what libevalq pins.
        taken = self._feed.submit(path, step, self.suites, variant=self.variant, epoch=epoch, held=held, **options)
        if not taken:
            self.held.release(step)
        return self._submitted(step, taken)

    def submit_state_dict(self, state: Mapping[str, Any], step: int, epoch: Optional[float], **options: Any) -> bool:
        """Weights that are not saved. As long as one copy to host memory."""
        self.due(step, epoch)
        taken = self._feed.submit_state_dict(
            state, step, self.suites, variant=self.variant, epoch=epoch, **options
        )
        return self._submitted(step, taken)

    def submit_newest(self, state: Callable[[], Mapping[str, Any]], step: int, epoch: Optional[float], **options: Any) -> None:
        """The weights of a step that is not due, once for each worker that has nothing else to do; microseconds if there is
        none. state is called only then."""
        if step <= 0 or step == self._last_due:
            return
        for suite in self.suites:  # A worker may be free for one suite alone.
            if self._feed.submit_state_dict(
                state, step, [suite], when="idle", variant=self.variant, epoch=epoch, **options
            ):
                self._between.add(step)
                self._ledger.due(step, [suite], self.variant, epoch)

    def is_between(self, step: int) -> bool:
        """Whether only submit_newest() submitted it: its metrics are logged, and decide on nothing, because how many such
        evaluations there are depends on the workers."""
        return step in self._between

    def reserve_state_dict(self, state: Mapping[str, Any]) -> None:
        """Weights like these will be submitted: the first time is to take no longer than later ones."""
        self._feed.reserve_state_dict(state)

    def _submitted(self, step: int, taken: bool) -> bool:
        if not taken:
            self.forget(step)
        self._submitted_at = time.monotonic()
        return taken

    def forget(self, step: int) -> None:
        """Of what was due, nothing will be submitted."""
        self._ledger.forget(step, self.suites, self.variant)
        self._due_at.pop(step, None)

    def pending(self) -> List[Tuple[int, str, str, Optional[float]]]:
        """(step, suite, variant, epoch) of what is due and has not come; goes through JSON."""
        return [each for each in self._ledger.pending() if not self.is_between(each[0])]

    def pending_steps(self) -> List[int]:
        """The steps of it."""
        return sorted({each[0] for each in self._ledger.pending()})

    def is_pending(self, step: int) -> bool:
        """Whether anything of the step is still to come."""
        return self._ledger.is_pending(step)

    # -- in

    def look(self, now: bool = False) -> List[Evaluation]:
        """What came and whose turn it is; cheap enough for every step. now: however short ago the last look."""
        moment = time.monotonic()
        if not now and moment - self._polled_at < _POLL_SECONDS:
            return []
        self._polled_at = moment
        return self._arrivals()

    def last(self, began: float, seconds: float) -> Tuple[List[Evaluation], bool]:
        """What came, and whether that was all. Waits for it, but not more than seconds at a time, and since began
        (monotonic) not longer than wait."""
        until = time.monotonic() + seconds
        deadline = began + self._wait
        self._reached_at = max(self._reached_at, began)
        while True:
            ready = self._arrivals()
            left = len(self._ledger.pending())
            if ready or left == 0:
                return ready, left == 0
            if time.monotonic() >= deadline:
                return self._give_up("the limit of %g s passed" % self._wait)
            if self._feed.ended(min(0.25, max(0.01, deadline - time.monotonic()))):
                self._take()
                self._ledger.accept_older()
                return self._give_up("the queue has nothing open")
            if self._feed.reachable:
                self._reached_at = time.monotonic()
            elif time.monotonic() - self._reached_at > _AWAY_SECONDS:
                return self._give_up("the queue does not answer")
            self._say_waiting(began, deadline, left)
            if time.monotonic() > until:
                return [], False

    def settle(self, step: int, keep: bool = False) -> None:
        """What came of the step was looked at. keep: it is the best so far, and may have to be put back."""
        if not keep and not self.is_pending(step):
            self.held.release(step)

    def close(self) -> None:
        """Sends what is ready, within a second."""
        self._feed.close()
        self.held.release_all()

    def _take(self) -> None:
        for result in self._feed.drain():
            ours = curve(self.variant) in curves(result.variant)
            self._ledger.take(result, self.variant if ours else result.variant)

    def _arrivals(self, flush: bool = False) -> List[Evaluation]:
        self._take()
        if self._ledger.older_waits and self._feed.ended_since(self._submitted_at):
            self._take()  # What ended by then has come by now.
            self._ledger.accept_older()
        ready = self._ledger.ready(flush)
        for evaluation in ready:
            self._seen.add(evaluation.suite)
            self._due_at.pop(evaluation.step, None)
        self._hint()
        return ready

    def _give_up(self, why: str) -> Tuple[List[Evaluation], bool]:
        ready = self._arrivals(flush=True)
        left = self._ledger.give_up()
        if left:
            steps = sorted({each[0] for each in left})
            log.log(
                logging.INFO if self._feed.unsent else logging.WARNING,  # Else libevalq has warned, and said why.
                "%d evaluation%s not come (%s): steps %s. To see why: evalq show %s. evalq-logger records what still"
                " comes; see `evalq results %s`",
                len(left),
                " has" if len(left) == 1 else "s have",
                why,
                ", ".join(map(str, steps[:8])) + ("..." if len(steps) > 8 else ""),
                self._job(left[0]),
                self._feed.run,
            )
        return ready, True

    def _hint(self) -> None:
        """Nobody may offer the suite; the queue knows."""
        if self._hinted or not self._due_at or time.monotonic() - min(self._due_at.values()) < _HINT_SECONDS:
            return
        late = [each for each in self._ledger.pending() if each[1] not in self._seen]
        if late:
            self._hinted = True
            log.warning(
                "nothing came of suite %s yet, after %d s. To see why: evalq show %s",
                late[0][1],
                _HINT_SECONDS,
                self._job(late[0]),
            )

    def _say_waiting(self, began: float, deadline: float, left: int) -> None:
        now = time.monotonic()
        if not self._said_waiting and now - began > _WAITING_SECONDS:
            self._said_waiting = True
            log.warning(
                "training is done; %d evaluation%s still open. This process ends as soon as they have, or after another"
                " %.0f s (wait=0 leaves them to evalq-logger). To see why: evalq show %s",
                left,
                " is" if left == 1 else "s are",
                deadline - now,
                self._job(self._ledger.pending()[0]),
            )

    def _job(self, pending: Tuple[int, str, str, Optional[float]]) -> str:
        return f"{self._feed.run}/{pending[0]}/{pending[2]}/{pending[1]}"
