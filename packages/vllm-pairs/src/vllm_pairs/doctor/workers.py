"""Processes that read files beside this one.

Plain child processes with pickles of our own over pipes, and not multiprocessing: forking where other threads
run is not safe, and its other ways to start run the caller's `__main__` again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from vllm_pairs.doctor.findings import DoctorError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVE = "from vllm_pairs.doctor.workers import serve; serve()"


def each(chunks: list[Any], shared: Any, processes: int) -> Iterator[Any]:
    """`outline.read_chunk(chunk, shared)` for every chunk, in no order; DoctorError where a process dies."""
    workers: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        for _ in range(processes)
    ]
    for worker in started:
        workers.put(worker)

    def ask(chunk: Any) -> Any:
        worker = workers.get()
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            pickle.dump((chunk, shared), worker.stdin)
            worker.stdin.flush()
            return pickle.load(worker.stdout)  # what our own process wrote
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise DoctorError(
                f"a process that read source files ended with status {worker.poll()} (killed for its memory?)"
            ) from error
        finally:
            workers.put(worker)

    try:
        with ThreadPoolExecutor(processes) as threads:
            yield from threads.map(ask, chunks)
    finally:
        for worker in started:
            worker.kill()
            worker.communicate()


def serve() -> None:
    """The other side: read chunks from standard input until it ends."""
    from vllm_pairs.doctor.outline import read_chunk

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    while True:
        try:
            chunk, shared = pickle.load(sys.stdin.buffer)  # from the process that started this one
        except EOFError:
            return
        pickle.dump(read_chunk(chunk, shared), answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
