"""Make one packet of evidence/: `simulator-*` with a real `vllm serve` a start, `harness-*` with a light server.

`python tools/evidence.py NAME [--at-most N]` goes on where an earlier call stopped, was killed, or was told to stop;
the run lies in out/evidence/NAME. What is measured is frozen before the first start: the packages as of one commit and
the tiny model are copied beside the run, so that work on the checkout meanwhile changes no arm. The finished packet is
verified, copied to evidence/packets/NAME and written into the ledger there.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import engines
import envs
from workspace import ROOT

OUT = ROOT / "out" / "evidence"
HOME = ROOT / "evidence"
PACKETS = HOME / "packets"
# Whose A/A packet a protocol quotes, once that packet is there.
CALIBRATIONS = {"harness": "harness-aa", "simulator": "simulator-aa"}
STARTS_MISSING = 3  # exit status of `serving-evidence run --at-most` with starts left


def names() -> list[str]:
    """The protocols there are."""
    return sorted(path.stem for path in (HOME / "protocols").glob("*.toml"))


def freeze(name: str) -> Path:
    """Copy the packages as committed beside the run, once; returns the folder that the copy lies in."""
    code = OUT / f"{name}-code"
    if not code.exists():
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        archive = subprocess.run(["git", "archive", "HEAD", "packages"], cwd=ROOT, capture_output=True, check=True)
        partial = code.with_name(code.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(partial, filter="data")
        (partial / "packages" / "commit.json").write_text(
            f'{{"commit": "{commit.stdout.strip()}"}}\n', encoding="utf-8"
        )
        partial.rename(code)
    return code


def place_model(python: Path) -> None:
    """Put the tiny model where the protocols name it."""
    model = OUT / "model"
    if not model.exists():
        code = "import sys; from ascend_sim import models; print(models.build('dense', sys.argv[1]))"
        command = [str(python), "-c", code, str(OUT / "models")]
        made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
        shutil.copytree(made, OUT / ".model", dirs_exist_ok=True)
        (OUT / ".model").rename(model)


def environment(python: Path, code: Path) -> dict[str, str]:
    """What runner, servers and clients inherit: the pair's commands, and the frozen packages before the checkout's."""
    sources = [str(path) for path in sorted(code.glob("packages/*/src")) if path.parent.name != "evidence"]
    sources.append(str(code / "packages" / "evidence" / "tests"))  # the light server and client
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "ASCEND_", "PYTHONPATH"))}
    return kept | {
        **engines.ENGINE_ENV,
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(HOME / "planted"), *sources]),
        "HF_HUB_OFFLINE": "1",
        # For clients and the runner; `ascend-sim serve` sets its own.
        "ASCEND_SIM": "plain",
    }


def pair_python() -> Path:
    """Python of the default pair's environment."""
    return envs.ensure(engines.default_pair(), echo=lambda line: print(f"evidence: {line}", file=sys.stderr))


def light_python() -> Path:
    """Python of the packages alone: the harness's own packets need no engine."""
    home = ROOT / ".nox" / "light"
    command = [envs.find_uv(), "sync", "--frozen", "--quiet", "--all-packages"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(home)}, check=True)
    return home / "bin" / "python"


def publish(name: str, python: Path) -> None:
    """Copy a finished packet into the repository and list it in the ledger."""
    target = PACKETS / name
    if target.exists():
        raise SystemExit(f"evidence/packets/{name} exists: a packet is never overwritten; move it away to make it anew")
    PACKETS.mkdir(exist_ok=True)
    shutil.copytree(OUT / name / "packet", target)
    command = [str(python), "-m", "serving_evidence", "ledger", str(PACKETS), "--add", name]
    subprocess.run(command, check=True, cwd=ROOT)


def main(argv: list[str] | None = None) -> int:
    """Run, resume, publish; exit status 3 while starts are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=names())
    parser.add_argument("--at-most", type=int, default=None, help="attempt at most so many starts now")
    options = parser.parse_args(argv)
    python = light_python() if options.name.startswith("harness-") else pair_python()
    OUT.mkdir(parents=True, exist_ok=True)
    code = freeze(options.name)
    if not options.name.startswith("harness-"):
        place_model(python)
    protocol = Path("evidence") / "protocols" / f"{options.name}.toml"
    command = [str(python), "-m", "serving_evidence", "run", str(protocol), "--out", f"out/evidence/{options.name}"]
    calibration = CALIBRATIONS[options.name.partition("-")[0]]
    if (PACKETS / calibration).exists() and options.name != calibration:
        command += ["--calibration", str(PACKETS / calibration)]
    if options.at_most is not None:
        command += ["--at-most", str(options.at_most)]
    status = subprocess.run(command, cwd=ROOT, env=environment(python, code), check=False).returncode
    if status == 0:
        publish(options.name, python)
    return status


if __name__ == "__main__":
    sys.exit(main())
