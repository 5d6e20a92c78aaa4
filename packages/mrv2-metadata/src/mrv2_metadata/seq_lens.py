"""Host sequence lengths without a loop: one gather to make them, one scatter to correct them.

All counts are int32 as the runner has them. `index` holds the rows of the batch's requests in the runner's request
state, in batch order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mrv2_metadata.authority import Exactness

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    Counts = NDArray[np.int32]
    Rows = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class HostLengths:
    """The host lengths of one batch: `seq_lens` [num_reqs] int32, tokens; `exact` [num_reqs] bool, one promise each."""

    seq_lens: Counts
    exact: NDArray[np.bool_]

    def exactness(self, row: int) -> Exactness:
        """What the length in batch row `row` promises."""
        return Exactness.EXACT if self.exact[row] else Exactness.UPPER_BOUND

    @property
    def all_exact(self) -> bool:
        """Whether every length of the batch is the true one."""
        return bool(self.exact.all())


def rows_of(req_ids: Iterable[str], req_id_to_index: Mapping[str, int], num_reqs: int) -> NDArray[np.intp]:
    """Rows [num_reqs] of the requests `req_ids`; KeyError names a request the runner does not hold."""
    return np.fromiter(map(req_id_to_index.__getitem__, req_ids), dtype=np.intp, count=num_reqs)


def scheduled_of(req_ids: Iterable[str], num_scheduled_tokens: Mapping[str, int], num_reqs: int) -> Counts:
    """Scheduled tokens [num_reqs] int32 of the requests `req_ids`, in that order."""
    return np.fromiter(map(num_scheduled_tokens.__getitem__, req_ids), dtype=np.int32, count=num_reqs)


def update(num_computed: Counts, num_scheduled: Counts, out: Counts) -> Counts:
    """Write the batch's `num_computed + num_scheduled` into `out[:num_reqs]` and return that view; allocates nothing.

    `num_computed` [num_reqs] is what the caller gathered from the request state, because it needs it for more.
    """
    view = out[: len(num_computed)]
    np.add(num_computed, num_scheduled, view)  # positional: parsing `out=` costs a tenth of the whole at 8 requests
    return view


def continuous(computed: Counts, expected: Counts) -> bool:
    """Whether the scheduler's counts are the `expected` ones, what each request's last step left behind.

    A negative expectation means that a request's past is not known, and so is not continuous.
    """
    # Equal bytes of two int32 arrays: the cheapest comparison numpy has for a small batch.
    return computed.tobytes() == expected.tobytes()


def advanced(computed: Counts, floor: Counts, ceiling: Counts) -> bool:
    """Whether every count lies above its last step's `floor` and not above `ceiling`, as after accepted drafts.

    At least one token of a step is always kept, and never more than were scheduled.
    """
    return bool(((computed > floor) & (computed <= ceiling)).all())


def correct(num_computed: Counts, device: Counts, rows: Rows) -> int:
    """Write the device's counts over `num_computed` in `rows`; return how many of them changed."""
    values = device[rows]
    changed = int(np.count_nonzero(num_computed[rows] != values))
    if changed:
        num_computed[rows] = values
    return changed


def live_span(rows: Iterable[int], max_rows: int) -> tuple[int, int]:
    """Smallest contiguous range of rows [start, stop) that holds every live request; (0, 0) where there is none.

    The request state hands out its rows from one end, so the range is as long as the number of live requests but for
    rows freed in between. A contiguous range needs one copy and no gather on the device.
    """
    values = list(rows)
    if not values:
        return 0, 0
    start, stop = min(values), max(values) + 1
    if start < 0 or stop > max_rows:
        raise IndexError(f"rows {start}..{stop - 1} are outside the request state of {max_rows} rows")
    return start, stop
