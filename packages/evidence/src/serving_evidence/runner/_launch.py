"""Run as a script: bind to CPUs, ask to be told when the runner dies, become the command.

usage: python -I -S _launch.py PARENT_PID CPU[,CPU...]|- COMMAND...
Standard library only and no package import: it stands between the runner and every server it starts.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Prepare this process and replace it by the command."""
    parent, cpus, *command = sys.argv[1:]
    if sys.platform == "linux":
        # SIGTERM lets a server take its workers down with it; a resumed runner sweeps up what is left.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if cpus != "-":
            os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    if os.getppid() != int(parent):
        sys.exit("the runner died before this process began")
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        sys.exit(f"cannot run {command[0]!r}: {problem.strerror}")


if __name__ == "__main__":
    main()
