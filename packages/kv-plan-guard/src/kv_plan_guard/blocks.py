"""The blocks of one KV cache group: who holds which, in which order, since when.

Rows are kept in kernel blocks, in tables of power-of-two widths, so that memory is linear in the blocks held (at most
twice of it, and what was held at the peak) and that the rows of a batch are one gather.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kv_plan_guard.arrays import any_true

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kv_plan_guard.layout import GroupLayout

MIN_WIDTH: Final = 16
HISTORY: Final = 4096
#: Blocks up to which a loop is quicker than array operations.
FEW: Final = 8


class RowTable:
    """Rows of one width; freed rows are taken again first, so that rows stay dense."""

    def __init__(self, width: int) -> None:
        self.rows = np.zeros((4, width), np.int32)
        self._free = [3, 2, 1, 0]

    def take(self) -> int:
        """A free row."""
        if not self._free:
            old = len(self.rows)
            self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
            self._free = list(range(2 * old - 1, old - 1, -1))
        return self._free.pop()

    def free(self, row: int) -> None:
        """Give a row back; what is left in it is behind every count."""
        self._free.append(row)


class Event(NamedTuple):
    """One change of hands: `what` is "given" or "freed"; `life` numbers the request's lives."""

    step: int
    what: str
    request: str
    life: int
    blocks: Sequence[int] | NDArray[np.int32]


class GroupBlocks:
    """See the module. Arrays indexed by request (`slot`) are grown by `ensure_slots`."""

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout
        self._ratio = layout.ratio
        self.tables: dict[int, RowTable] = {}
        self.width = np.zeros(0, np.int32)  # [slots] width of the table that holds the row; 0: none
        self.row = np.zeros(0, np.intp)  # [slots] row in that table
        self.count = np.zeros(0, np.int64)  # [slots] manager blocks in the row
        self.released = np.zeros(0, np.int64)  # [slots] leading columns that were given up (ephemeral groups)
        self.flagged: set[int] = set()  # slots whose row holds an id out of range, or too many
        self.nulls: set[int] = set()  # slots whose row holds the null block
        # Both grow to the highest id seen.
        self.refs = np.zeros(0, np.int32)  # [pool] live rows that hold the block
        self.writer = np.full(0, -1, np.int64)  # [pool] life that the block was last given to
        self.generation = np.zeros(0, np.int32)  # [pool] times it was given away
        self.conflicts: dict[int, tuple[int, int]] = {}  # block -> (holding life, new life)
        self._joined: dict[int, int] = {}  # block that nobody held -> column at which a prefix hit of this step took it
        self.history: deque[Event] = deque(maxlen=HISTORY)
        self._plain = 0  # ids below are in every range and have their place in the pool's arrays
        self.moves = 0  # grows when a row changes its place

    # -- requests --------------------------------------------------------------------------------------------------

    def ensure_slots(self, size: int) -> None:
        """Make room for request slots `0 .. size - 1`."""
        for name in ("width", "row", "count", "released"):
            old: NDArray[Any] = getattr(self, name)
            if len(old) < size:
                new = np.zeros(size, old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)

    def kernel_row(self, slot: int) -> NDArray[np.int32]:
        """The kernel blocks of a request, in order; a view."""
        width = int(self.width[slot])
        if not width:
            return np.zeros(0, np.int32)
        return self.tables[width].rows[self.row[slot], : int(self.count[slot]) * self.layout.ratio]

    def manager_row(self, slot: int) -> NDArray[np.int32]:
        """The manager blocks of a request, in order."""
        return self.kernel_row(slot)[:: self.layout.ratio] // self.layout.ratio

    def append(self, slot: int, life: int, request: str, ids: Sequence[int], hits: int, step: int) -> None:
        """Append manager blocks to a row. The first `hits` columns of the *row* may be shared with other requests."""
        size = len(ids)
        if not size:
            return
        at = int(self.count[slot])
        self._store(slot, at, ids)
        self.count[slot] = at + size
        self.history.append(Event(step, "given", request, life, ids))
        layout = self.layout
        if layout.row_width is not None and (at + size) * self._ratio > layout.row_width:
            self.flagged.add(slot)
        if size <= FEW and min(ids) >= 0 and max(ids) < self._plain and layout.null_block not in ids:
            for column, block in enumerate(ids, at):
                self._hold_one(block, life, column, column < hits)
        else:
            self._hold(ids, slot, life, at, max(0, hits - at))

    def drop(self, slot: int, life: int, request: str, step: int) -> None:
        """Give all blocks of a request back."""
        if not self.width[slot]:
            return
        ids = self.manager_row(slot)[int(self.released[slot]) :].copy()
        self.history.append(Event(step, "freed", request, life, ids))
        self._release(ids, slot)
        self.tables[int(self.width[slot])].free(int(self.row[slot]))
        self.width[slot] = self.count[slot] = self.released[slot] = 0
        self.flagged.discard(slot)
        self.nulls.discard(slot)
        self.moves += 1

    def release_before(self, slots: NDArray[np.intp], first: NDArray[np.int64]) -> None:
        """Columns before `first` are no longer needed: the scheduler may give those blocks away without a word.

        What was given up once stays so, also where a rejected draft moves the boundary back.
        """
        moved = self.released[slots] < np.minimum(first, self.count[slots])
        if not any_true(moved):
            return
        for at in np.flatnonzero(moved).tolist():
            slot, goal = int(slots[at]), min(int(first[at]), int(self.count[slots[at]]))
            done = int(self.released[slot])
            self._release(self.manager_row(slot)[done:goal], slot)
            self.released[slot] = goal

    def restore_row(self, slot: int, kernel: Sequence[int], released: int) -> None:
        """Put a row in place as a replay file has it, without changing who holds what."""
        if kernel:
            width = self._move(slot, len(kernel))
            self.tables[width].rows[self.row[slot], : len(kernel)] = kernel
        self.count[slot] = len(kernel) // self.layout.ratio
        self.released[slot] = released

    # -- ownership -------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Call before the givings of a step.

        A decision lists new requests apart from running ones, and not in the order in which the scheduler served them:
        a new request may hit, in its first step, a block that a request served before it fills in the same step. Such a
        hit may be read first here. It stands at the same column of both rows, since a prefix hit is one of all tokens
        up to there; the other request is the block's writer.
        """
        if self._joined:
            self._joined.clear()

    def holders(self, block: int, slots: Iterable[int]) -> list[tuple[int, int]]:
        """(slot, column) of every listed request whose row holds the block in a column it has not given up."""
        found = []
        for slot in slots:
            row = self.manager_row(slot)
            start = int(self.released[slot])
            found += [(slot, start + int(column)) for column in np.flatnonzero(row[start:] == block)]
        return found

    def events(self, block: int, limit: int = 8) -> list[Event]:
        """The last changes of hands of a block, oldest first, as far as the bounded history reaches."""
        found = [event for event in self.history if block in event.blocks]
        return found[-limit:]

    def nbytes(self) -> int:
        """Bytes of the arrays; the history is bounded and not counted."""
        arrays = (self.width, self.row, self.count, self.released, self.refs, self.writer, self.generation)
        return sum(array.nbytes for array in arrays) + sum(table.rows.nbytes for table in self.tables.values())

    def _store(self, slot: int, at: int, ids: Sequence[int]) -> None:
        ratio = self._ratio
        stop = (at + len(ids)) * ratio
        width = int(self.width[slot])
        if stop > width:
            width = self._move(slot, stop)
        row = self.tables[width].rows[self.row[slot]]
        try:
            if ratio == 1:
                row[at:stop] = ids
            else:
                first = np.asarray(ids, np.int64) * ratio
                row[at * ratio : stop] = (first[:, None] + np.arange(ratio)).ravel()
        except OverflowError:
            # An id that fits no block table at all: kept as -1, which is out of every range.
            row[at * ratio : stop] = -1

    def _move(self, slot: int, need: int) -> int:
        width = max(MIN_WIDTH, 1 << (need - 1).bit_length())
        table = self.tables.setdefault(width, RowTable(width))
        row = table.take()
        old = int(self.width[slot])
        if old:
            used = int(self.count[slot]) * self.layout.ratio
            table.rows[row, :used] = self.tables[old].rows[self.row[slot], :used]
            self.tables[old].free(int(self.row[slot]))
        self.width[slot], self.row[slot] = width, row
        self.moves += 1
        return width

    def _hold_one(self, block: int, life: int, column: int, hit: bool) -> None:
        refs = self.refs
        if not refs[block]:
            refs[block] = 1
            if hit:
                self._joined[block] = column
        else:
            refs[block] += 1
            if hit:
                return
            self._given_again(block, column, life)
        self.writer[block] = life
        self.generation[block] += 1

    def _given_again(self, block: int, column: int, life: int) -> None:
        """A block that is held was given: a conflict, unless its holder is a hit of this step's filling of it."""
        if self._joined.pop(block, None) != column:
            self.conflicts[block] = (int(self.writer[block]), life)

    def _hold(self, ids: Sequence[int], slot: int, life: int, at: int, num_hits: int) -> None:
        layout = self.layout
        low, high = min(ids), max(ids)
        null = layout.null_block is not None and layout.null_block in ids
        if low < 0 or high >= layout.kernel_pool // layout.ratio or high >= layout.pool_blocks:
            self.flagged.add(slot)
            low, high = -1, min(high, layout.pool_blocks - 1)
        if null:
            self.nulls.add(slot)
        blocks, columns = np.array(ids, np.int64), np.arange(at, at + len(ids))
        if high >= len(self.refs):
            self._grow_pool(high + 1)
        if null or low < 0:
            keep = (blocks >= 0) & (blocks < layout.pool_blocks)
            if null:
                keep &= blocks != layout.null_block
            num_hits = int(keep[:num_hits].sum())
            blocks, columns = blocks[keep], columns[keep]
        refs = self.refs
        held = refs[blocks]
        if num_hits:
            free = held[:num_hits] == 0
            self._joined.update(zip(blocks[:num_hits][free].tolist(), columns[:num_hits][free].tolist(), strict=True))
        if any_true(held != 0) or len(set(ids)) != len(ids):
            self._hold_shared(blocks, columns, held, life, num_hits)
            return
        refs[blocks] = 1
        self.writer[blocks] = life
        self.generation[blocks] += 1

    def _hold_shared(
        self, blocks: NDArray[np.int64], columns: NDArray[np.int64], held: NDArray[np.int32], life: int, num_hits: int
    ) -> None:
        """Blocks some of which are held: those of a prefix hit are shared, the others are a conflict."""
        hit = np.arange(len(blocks)) < num_hits
        taken = ~hit & (held > 0)
        for block, column in zip(blocks[taken].tolist(), columns[taken].tolist(), strict=True):
            self._given_again(block, column, life)
        np.add.at(self.refs, blocks, 1)
        fresh = blocks[~hit | (held == 0)]
        self.writer[fresh] = life
        self.generation[fresh] += 1
        new = blocks[held == 0]
        for block in new[self.refs[new] > 1].tolist():
            self.conflicts.setdefault(block, (life, life))  # twice in one row

    def _release(self, ids: NDArray[np.int32], slot: int) -> None:
        if slot in self.nulls or slot in self.flagged:
            ids = ids[(ids >= 0) & (ids < len(self.refs))]
            if self.layout.null_block is not None:
                ids = ids[ids != self.layout.null_block]
        if not self.conflicts:
            self.refs[ids] -= 1  # no block stands twice in a row, else there were a conflict
            return
        np.subtract.at(self.refs, ids, 1)
        for block in [b for b in self.conflicts if self.refs[b] <= 1]:
            del self.conflicts[block]

    def _grow_pool(self, size: int) -> None:
        old = len(self.refs)
        size = min(max(size, 2 * old, 64), self.layout.pool_blocks)
        self.refs = np.concatenate([self.refs, np.zeros(size - old, np.int32)])
        self.writer = np.concatenate([self.writer, np.full(size - old, -1, np.int64)])
        self.generation = np.concatenate([self.generation, np.zeros(size - old, np.int32)])
        self.set_plain()

    def set_plain(self) -> None:
        """Call when the pool's arrays have another length."""
        self._plain = min(len(self.refs), self.layout.kernel_pool // self.layout.ratio)
