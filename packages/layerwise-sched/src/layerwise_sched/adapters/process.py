"""What the workers of one process share: numbers that never repeat, the timeline of a folder, the control file."""

from __future__ import annotations

import atexit
import logging
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise_sched.errors import PolicyError
from layerwise_sched.spool import Spool
from layerwise_sched.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.adapters.loads import Loads
    from layerwise_sched.config import Config

logger = logging.getLogger(__name__)
CONTROL_BYTES = 256  # a policy's name is shorter


class Numbers:
    """Correlation ids, steps and gate ids of one process and folder; each is given out by the compute thread."""

    def __init__(self, config: Config, facts: dict[str, Any]) -> None:
        self.timeline: Timeline | None = None
        self.spool: Spool | None = None
        if config.timeline is not None:
            self.timeline = Timeline(config.ring_rows)
            self.spool = Spool(self.timeline, config.timeline, facts=facts)
            self.spool.start()
            atexit.register(self.spool.close)
        self.new_cid: Callable[[], int] = count().__next__
        """A correlation id that no other task of this process and folder has."""
        self.new_step: Callable[[], int] = count().__next__
        """The number of a forward pass."""
        self.new_gate: Callable[[], int] = count().__next__
        """The id of an attention gate."""


class Control:
    """The file whose first word names the policy in force; looked at once a step, read when it changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None  # mtime and size as read last

    def follow(self, loads: Loads) -> None:
        """Put the file's policy in force, if the file has changed. Never raises; a bad word is one warning."""
        try:
            found = os.stat(self._path)
            stamp = found.st_mtime_ns, found.st_size
            if stamp == self._read:
                return
            self._read = stamp
            with Path(self._path).open(encoding="utf-8") as file:
                words = file.read(CONTROL_BYTES).split()
            if words:
                loads.use(words[0])
                logger.info("control file %s: policy %r is in force", self._path, words[0])
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError, PolicyError) as error:
            logger.warning("control file %s: %s; the policy stays", self._path, error)


_by_folder: dict[str, Numbers] = {}


def numbers_for(config: Config, facts: dict[str, Any]) -> Numbers:
    """The numbers of this process; one for each timeline folder, so that a second engine adds to the first's file."""
    if config.timeline is None:
        return Numbers(config, facts)
    key = str(Path(config.timeline).resolve())
    if key not in _by_folder:
        _by_folder[key] = Numbers(config, facts)
    return _by_folder[key]
