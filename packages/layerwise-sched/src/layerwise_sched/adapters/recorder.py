"""Rows of a timeline, written from upstream's threads: nothing here raises, whatever happens to the timeline."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from layerwise_sched.timeline import NO_TASK, Code, clock

if TYPE_CHECKING:
    from layerwise_sched.model import DependencyKind
    from layerwise_sched.timeline import Timeline

logger = logging.getLogger(__name__)


class Recorder:
    """Writes into the calling thread's ring. After a first fault it writes nothing more, and has said so once."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline: Timeline | None = timeline

    def event(self, code: Code, subject: int, value: int = 0, at: int | None = None) -> None:
        """One row, now or with the time `at` (ns)."""
        if (timeline := self.timeline) is not None:
            try:
                timeline.local().event(code, subject, value, at)
            except Exception:
                self.fail()

    def fail(self) -> None:
        """End the recording here; upstream goes on."""
        self.timeline = None
        logger.exception("the layer-wise timeline of this process ends here: its recorder failed")


class Serving:
    """The task in the receive thread's handler: its spans, and what it waits for at this moment.

    Only the receive thread writes; the sampler reads `cid` and `missing`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.cid = NO_TASK
        self.missing: DependencyKind | None = None
        self.last = 0  # end of the span before, or the begin of the handler (ns)

    def begin(self, cid: int) -> None:
        """The handler starts with this task."""
        self.missing = None
        self.last = clock()
        self.cid = cid

    def end(self) -> None:
        """The handler is done with it."""
        self.cid = NO_TASK
        self.missing = None

    def unmet(self, event: Any, kind: DependencyKind) -> None:
        """Note that an NPU event is incomplete as the wait for it begins: only then is the wait's end the event's."""
        if self.cid != NO_TASK and not event.query():
            self.recorder.event(Code.UNMET, self.cid, kind)

    def span(self, code: Code, begin: int, end: int) -> None:
        """One span of the task, in ns."""
        self.last = end
        if self.cid != NO_TASK:
            self.recorder.event(code, self.cid, end, begin)
