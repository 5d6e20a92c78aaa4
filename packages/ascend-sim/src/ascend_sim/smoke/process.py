"""Child processes of a smoke run: started in their own session, watched, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from io import RawIOBase
    from pathlib import Path


class ChildFailedError(RuntimeError):
    """A child process ended badly; the message has its name, how it ended and its last log lines."""


class Child:
    """A process whose output goes to a log file and, line by line, to `on_line`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.name, self.log = name, log
        self.log_error: OSError | None = None
        self._tail: deque[str] = deque(maxlen=15)
        self._on_line = on_line
        # An own session, so that workers that the engine starts go down with it.
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environment),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output, contextlib.ExitStack() as opened:
            log = self._open_log(opened)
            for line in output:
                self._tail.append(line.rstrip())
                if log is not None:
                    log = self._keep(log, line)
                if self._on_line:
                    self._on_line(line.rstrip())

    def _open_log(self, opened: contextlib.ExitStack) -> RawIOBase | None:
        try:
            return opened.enter_context(self.log.open("wb", buffering=0))
        except OSError as error:
            self.log_error = error
            return None

    def _keep(self, log: RawIOBase, line: str) -> RawIOBase | None:
        # A full disk ends the log, not the reading: a child whose pipe nobody empties would stop for ever.
        try:
            log.write(line.encode())
        except OSError as error:
            self.log_error = error
            return None
        return log

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id, also the id of its session."""
        return self._process.pid

    def wait(self, timeout_s: float) -> int:
        """Exit status; raises `ChildFailedError` after `timeout_s` seconds, having ended the process."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise ChildFailedError(f"{self.name} did not finish within {timeout_s:.0f} s\n{self.tail()}") from None
        self._reader.join(5)
        return status

    def check(self, timeout_s: float) -> None:
        """Wait, and raise `ChildFailedError` unless the exit status is 0."""
        status = self.wait(timeout_s)
        if status:
            log = f"{self.log} (cut: {self.log_error})" if self.log_error else self.log
            raise ChildFailedError(f"{self.name} {describe_exit(status)}; log: {log}\n{self.tail()}")

    def tail(self) -> str:
        """Last lines of its output."""
        return "\n".join(f"  | {line}" for line in self._tail)

    def stop(self, grace_s: float = 10.0) -> None:
        """End the process and everything in its session: SIGTERM, then SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline and _session_alive(self._process):
                time.sleep(0.05)
            if not _session_alive(self._process):
                break
        self._reader.join(5)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def describe_exit(status: int) -> str:
    """An exit status in words."""
    return f"was ended by signal {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def _session_alive(process: subprocess.Popen[str]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
