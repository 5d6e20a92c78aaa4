"""kill -9 of runner, server or client at random moments, then resume: nothing lost, nothing doubled, no orphan.

Servers and clients are the light HTTP pair of the package's tests by default. --protocol takes a protocol with real
ones (`evidence/protocols/simulator-aa.toml`: `vllm serve` under ascend-sim), cut down to --pairs; it needs the default
pair's environment and the model that `nox -s evidence` leaves in out/evidence.
"""

# env: light

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from _evidence_common import TESTS, write_summary
from serving_evidence import protocol
from serving_evidence.packet import verify
from serving_evidence.runner import processes
from serving_evidence.schedule import plan

ROOT = Path(__file__).resolve().parent.parent
VICTIMS = ("runner", "server", "client")
ATTEMPTS = 20  # a start that is killed is attempted again: no kill may use the last attempt up


def light_protocol(pairs: int) -> str:
    """The light pair as a protocol."""
    server = [sys.executable, "-I", str(TESTS / "light_server.py"), "--port", "{port}", "--ready-after-s", "0.1"]
    client = [sys.executable, "-I", str(TESTS / "light_client.py"), "--port", "{port}", "--out"]
    client += ["{result_dir}/{result_file}", "--requests", "8", "--tokens", "8"]
    return f"""
version = 1
name = "chaos"
question = "Does a run survive kill -9 at any point?"
[arms.A]
label = "A"
command = {json.dumps(server)}
[arms.B]
label = "B"
command = {json.dumps(server)}
[[scenarios]]
name = "one"
command = {json.dumps(client)}
outputs = "equal"
[[scenarios]]
name = "two"
command = {json.dumps(client)}
[primary]
metric = "mean_itl_ms"
scenario = "one"
[design]
pairs = {pairs}
attempts = {ATTEMPTS}
"""


def real_protocol(path: Path, pairs: int) -> str:
    """A protocol of real servers with fewer pairs, more attempts, and the code of this checkout."""
    text = re.sub(r"(?m)^pairs = .*$", f"pairs = {pairs}", path.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)^attempts = .*$", f"attempts = {ATTEMPTS}", text)
    return re.sub(r"(?m)^code_paths = .*$", 'code_paths = ["packages", "evidence/planted"]', text)


def use_real_servers() -> None:
    """Let runners find the pair's commands, as `nox -s evidence` does."""
    sys.path.append(str(ROOT / "tools"))
    import evidence

    sys.path.pop()
    python = evidence.pair_python()
    evidence.OUT.mkdir(parents=True, exist_ok=True)
    evidence.place_model(python)
    wanted = evidence.environment(python, ROOT)  # without what of VLLM's own settings is in force here
    os.environ.clear()
    os.environ.update(wanted)


def start_runner(toml: Path, folder: Path) -> subprocess.Popen[bytes]:
    """A runner in a process of its own."""
    command = [sys.executable, "-m", "serving_evidence", "run", str(toml), "--out", str(folder), "--json"]
    with (folder.parent / "runner.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def run_id(folder: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads((folder / "run.json").read_text())["id"])
    return None


def victim(kind: str, runner: subprocess.Popen[bytes], folder: Path) -> psutil.Process | None:
    """The process to kill, if it lives now."""
    if kind == "runner":
        return psutil.Process(runner.pid) if runner.poll() is None else None
    mark = run_id(folder)
    for process in processes.marked(mark) if mark else []:
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if ("light_client" in words or "bench serve" in words) == (kind == "client"):
                return process
    return None


def wait_for(kind: str, runner: subprocess.Popen[bytes], folder: Path, deadline: float) -> psutil.Process | None:
    """The process to kill as soon as it lives; None when the run ended first."""
    while (target := victim(kind, runner, folder)) is None:
        if runner.poll() is not None or time.monotonic() > deadline:
            return None
        time.sleep(0.01)
    return target


def complete(folder: Path) -> dict[str, str]:
    """Hash of start.json and results of every start that counts so far."""
    found = {}
    for path in sorted((folder / "starts").glob("*/start.json")) if (folder / "starts").exists() else []:
        files = sorted(p for p in path.parent.iterdir() if p.suffix == ".json")
        found[path.parent.name] = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()
    return found


def orphans(folder: Path) -> int:
    """Living processes with the run's mark while no runner is at work."""
    mark = run_id(folder)
    return len(processes.marked(mark)) if mark else 0


def one_run(
    seed: int, kills: int, folder: Path, toml: Path, longest_s: dict[str, float], limit_s: float
) -> dict[str, Any]:
    """Kill `kills` times while one run goes to its end; counts of what went wrong."""
    rng = random.Random(seed)
    out = folder / "run"
    done: list[str] = []
    before: dict[str, str] = {}
    lost = 0
    runner = start_runner(toml, out)
    deadline = time.monotonic() + limit_s
    while len(done) < kills and time.monotonic() < deadline:
        if runner.poll() is not None:
            if (out / "packet").exists():
                break
            runner = start_runner(toml, out)
        kind = rng.choice(VICTIMS)
        target = wait_for(kind, runner, out, deadline)
        # At a random moment of its life; one that ended by itself meanwhile is not counted.
        time.sleep(rng.uniform(0, longest_s[kind]))
        if target is None or not target.is_running():
            continue
        now = complete(out)
        lost += sum(now.get(name) != print_ for name, print_ in before.items())
        before = now
        with contextlib.suppress(psutil.Error):
            target.kill()
            done.append(kind)
        if kind == "runner":
            runner.wait()
    for _ in range(3):  # a runner that was killed last, or one that ended early, is resumed to the end
        if runner.poll() is None:
            runner.wait(timeout=max(deadline - time.monotonic(), 60))
        if (out / "packet").exists():
            break
        runner = start_runner(toml, out)
    left = orphans(out)
    declared = protocol.load(toml)
    verified = verify(out / "packet")
    indices = [start.index for start in verified.packet.starts]
    now = complete(out)
    lost += sum(now.get(name) != print_ for name, print_ in before.items())
    lost += len(set(range(len(plan(declared.design)))) - set(indices))
    return {
        "seed": seed,
        "kills": len(done),
        "killed": {kind: done.count(kind) for kind in VICTIMS},
        "excluded": len(verified.packet.excluded),
        "lost": lost,
        "doubled": len(indices) - len(set(indices)),
        "orphans": left,
        "invalid": verified.verdict["invalid"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/evidence_chaos"))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--per-run", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--protocol", type=Path, help="a protocol with real servers instead of the light pair")
    parser.add_argument(
        "--longest-s",
        type=float,
        nargs=3,
        default=[4.0, 1.0, 0.2],
        help="latest moment to kill a runner, server, client",
    )
    parser.add_argument("--limit-s", type=float, default=3_600.0, help="longest time of one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--one-run", action="store_true", help="one run now; the same call goes on (status 3 meanwhile)"
    )
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    progress = options.out / f"progress-{options.seed}-{options.kills}.json"
    if options.one_run and progress.exists():
        rows = json.loads(progress.read_text(encoding="utf-8"))
    if options.protocol:
        use_real_servers()
    with tempfile.TemporaryDirectory() as name:
        while sum(row["kills"] for row in rows) < options.kills and len(rows) < options.kills:
            folder = Path(name) / f"{len(rows):03d}"
            folder.mkdir()
            toml = folder / "protocol.toml"
            real = options.protocol
            text = real_protocol(real, options.pairs) if real else light_protocol(options.pairs)
            toml.write_text(text, encoding="utf-8")
            left = options.kills - sum(row["kills"] for row in rows)
            rows.append(
                one_run(
                    options.seed + len(rows),
                    min(options.per_run, left),
                    folder,
                    toml,
                    dict(zip(VICTIMS, options.longest_s, strict=True)),
                    options.limit_s,
                )
            )
            sys.stdout.write(json.dumps(rows[-1]) + "\n")
            sys.stdout.flush()
            if options.one_run:
                options.out.mkdir(parents=True, exist_ok=True)
                progress.write_text(json.dumps(rows), encoding="utf-8")
                if sum(row["kills"] for row in rows) < options.kills:
                    return 3
    progress.unlink(missing_ok=True)
    figures = {key: sum(row[key] for row in rows) for key in ("kills", "lost", "doubled", "orphans")}
    figures["runs"] = len(rows)
    figures["invalid"] = sum(bool(row["invalid"]) for row in rows)
    passed = figures["kills"] >= options.kills and not any(
        figures[key] for key in ("lost", "doubled", "orphans", "invalid")
    )
    return write_summary(options.out, "evidence_chaos", options.seed, figures, rows, passed)


if __name__ == "__main__":
    sys.exit(main())
