"""Processes of a run: started in their own group with a mark in the environment, and none left behind.

The mark (an environment variable with the run's id) is inherited by every descendant, so that a runner which comes
back after `kill -9` finds what the dead one had started, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARK = "SERVING_EVIDENCE_RUN"
_LAUNCH = Path(__file__).with_name("_launch.py")


def spawn(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path, folder: Path, cpus: Sequence[int], run_id: str
) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, output to `log`, bound to `cpus` when there are any."""
    bound = ",".join(str(cpu) for cpu in cpus) or "-"
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), bound, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment, MARK: run_id},
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """End a process group: SIGTERM, then SIGKILL after the timeout. True when it ended by itself."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _signal(process.pid, signal.SIGKILL)
            process.wait()
            return False
    # Workers of the group that outlived their parent.
    _signal(process.pid, signal.SIGKILL)
    return True


def marked(run_id: str) -> list[psutil.Process]:
    """Living processes that carry this run's mark, this process apart."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == run_id
            ):
                found.append(process)
    return found


def sweep(run_id: str, grace_s: float = 0.0) -> int:
    """Kill every process of this run that is still there; returns how many had to be killed."""
    deadline = time.monotonic() + grace_s
    while (left := marked(run_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=10)
    return len(left)


def free_port() -> int:
    """A TCP port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def http_get(url: str, timeout_s: float = 2.0) -> bytes | None:
    """Body of a 200 answer of a local server, or None; environment proxies are not asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return bytes(answer.read(65_536)) if answer.status == 200 else None
    except (OSError, ValueError, urllib.error.URLError):
        return None


def wait_ready(url: str, process: subprocess.Popen[bytes], timeout_s: float) -> str | None:
    """Wait until the server answers 200; returns None when ready, else why not ('died' or 'timeout')."""
    deadline = time.monotonic() + timeout_s
    pause = 0.05
    while process.poll() is None:
        if http_get(url) is not None:
            return None
        if time.monotonic() > deadline:
            return "timeout"
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
    return "died"


def _signal(group: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, what)
