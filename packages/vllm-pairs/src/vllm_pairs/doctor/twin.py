"""A forked copy of this process that does half of the work: it has all that was read so far, without a copy of it.

Only a process without other threads is forked: a lock that one of them holds would never be given back in the copy.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import traceback
from typing import TYPE_CHECKING, Any

from vllm_pairs.doctor.findings import DoctorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO


def can_fork() -> bool:
    """Whether this process can be forked now, and there is a processor for the copy."""
    return hasattr(os, "fork") and threading.active_count() == 1 and (os.cpu_count() or 1) > 1


class Twin:
    """The copy, as the process that made it sees it."""

    def __init__(self, work: Callable[[Callable[[Any], Any]], Any]) -> None:
        """Fork; the copy runs `work(talk)` and hands over what it returns. `talk(x)` there sends x and waits.

        Raises OSError where there is no room for another process.
        """
        (mine_in, its_out), (its_in, mine_out) = os.pipe(), os.pipe()
        try:
            self._pid = os.fork()
        except OSError:  # no room for another process
            for end in (mine_in, its_out, its_in, mine_out):
                os.close(end)
            raise
        if not self._pid:
            os.close(mine_in)
            os.close(mine_out)
            _run(work, os.fdopen(its_in, "rb"), os.fdopen(its_out, "wb"))
        os.close(its_in)
        os.close(its_out)
        self._from, self._to = os.fdopen(mine_in, "rb"), os.fdopen(mine_out, "wb")

    def receive(self) -> Any:
        """What the copy says next; DoctorError where it ended without a word."""
        try:
            return pickle.load(self._from)  # what our own process wrote
        except (EOFError, pickle.UnpicklingError) as error:
            raise DoctorError(
                "the process that checked a part of the plugin ended before it was done (killed for its memory?): "
                "run again with more memory, or on one processor"
            ) from error

    def send(self, what: Any) -> None:
        """Answer it. What it cannot take any more shows when it is asked next."""
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(what, self._to, protocol=pickle.HIGHEST_PROTOCOL)
            self._to.flush()

    def end(self) -> None:
        """Close both pipes, which ends a copy that still waits for one, and wait until it is gone."""
        for end in (self._from, self._to):
            with contextlib.suppress(BrokenPipeError):
                end.close()
        os.waitpid(self._pid, 0)


def _run(work: Callable[[Callable[[Any], Any]], Any], source: BinaryIO, sink: BinaryIO) -> None:
    """In the copy: work, and leave without the parent's clean-up."""

    def say(what: Any) -> None:
        pickle.dump(what, sink, protocol=pickle.HIGHEST_PROTOCOL)
        sink.flush()

    def talk(what: Any) -> Any:
        say(what)
        return pickle.load(source)  # what the process wrote that made this one

    status = 1
    try:
        say(work(talk))
        status = 0
    except (EOFError, BrokenPipeError):
        pass  # nobody listens any more
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
