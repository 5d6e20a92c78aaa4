"""The sessions that run the real engine: which pairs, in which environment, with which command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import envs
from workspace import ROOT

if TYPE_CHECKING:
    import nox

# One thread: the hosts are small, and reductions in one order make runs repeat to the bit.
ENGINE_ENV = {"OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1"}
# coverage.py beside the scripts would stand in for the coverage package in whatever imports it (numba does).
BENCH_NAMES = {"evidence_coverage": "coverage"}
NPU_PACKAGES = ("vllm-pairs", "ascend-sim", "mrv2-metadata", "kv-plan-guard", "layerwise-sched")


def split_pairs(session: nox.Session) -> tuple[list[str], list[str]]:
    """Read `--pair ID` and `--all-pairs` from the session's arguments: (pair ids, remaining arguments)."""
    chosen: list[str] = []
    rest: list[str] = []
    words = iter(session.posargs)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--pair":
            chosen.append(value if equals else next(words, ""))
        elif word == "--all-pairs":
            chosen.extend(verified_pairs())
        else:
            rest.append(word)
    return chosen or [default_pair()], rest


def verified_pairs() -> list[str]:
    """Ids of the pairs that `--all-pairs` means."""
    return [row["id"] for row in envs.rows() if row["status"] == "verified"]


def default_pair() -> str:
    """Id of the pair that is meant when none is named."""
    return str(tomllib.loads(envs.TABLE.read_text(encoding="utf-8"))["default"])


def ensure(session: nox.Session, pair: str) -> str:
    """Path of the Python of a pair's environment, made when it is not there yet."""
    try:
        return str(envs.ensure(pair, echo=session.log))
    except envs.EnvError as error:
        session.error(str(error))


def run_tests(session: nox.Session) -> None:
    """Run the tests marked `engine` under each chosen pair; `--quick` leaves out those marked `slow`."""
    pairs, rest = split_pairs(session)
    marker = "engine and not slow" if "--quick" in rest else "engine"
    rest = [word for word in rest if word != "--quick"]
    for pair in pairs:
        command = [
            ensure(session, pair),
            "-m",
            "pytest",
            *rest,
            *([] if any((ROOT / word.partition("::")[0]).exists() for word in rest) else ["tests"]),
            "-m",
            marker,
            "--hypothesis-profile=ci",
        ]
        session.run(*command, env=ENGINE_ENV | {"KIT_PAIR": pair}, external=True)


def cpu_smoke(session: nox.Session) -> None:
    """Run the smoke under each chosen pair; over several, merge their results, the worst pair's figures on top."""
    pairs, rest = split_pairs(session)
    out = ROOT / "out" / "cpu-smoke"
    if len(pairs) == 1:
        smoke(session, pairs[0], out, rest)
        return
    folders = [out / "pairs" / pair for pair in pairs]
    # A pair that fails must not hide how the others did: the merged result says which, and fails the session.
    for pair, folder in zip(pairs, folders, strict=True):
        shutil.rmtree(folder, ignore_errors=True)  # a result of an earlier run must not be merged
        smoke(session, pair, folder, rest, success_codes=[0, 1, 2])
    merge = [ensure(session, pairs[0]), "-m", "ascend_sim.smoke", "merge", *map(str, folders), "--out", str(out)]
    session.run(*merge, env=ENGINE_ENV, external=True)


def smoke(session: nox.Session, pair: str, out: Path, rest: list[str], success_codes: list[int] | None = None) -> None:
    """Run one pair's smoke into `out`."""
    command = [ensure(session, pair), "-m", "ascend_sim.smoke", "cpu", "--pair", pair, "--out", str(out), *rest]
    session.run(*command, env=ENGINE_ENV, external=True, success_codes=success_codes or [0])


def host_python() -> str:
    """The Python of the host, not the one that nox itself runs in: the host's one has torch_npu."""
    own = {str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent)}
    path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part not in own)
    found = shutil.which("python3", path=path)
    if not found:
        raise SystemExit("no python3 on PATH outside nox's own environment: activate the one that has torch_npu")
    return found


def npu_smoke(session: nox.Session) -> None:
    """Run the smoke on a real NPU, in an environment that sees the host's packages and changes none of them.

    With `--simulated`, the same flow in a pair's environment on the CPU.
    """
    if "--simulated" in session.posargs:
        pairs, rest = split_pairs(session)
        command = [ensure(session, pairs[0]), "-m", "ascend_sim.smoke", "npu", *rest]
        session.run(*command, env=ENGINE_ENV, external=True)
        return
    # First and by the standard library alone: a host without an NPU hears so before anything is built.
    check = ROOT / "packages" / "ascend-sim" / "src" / "ascend_sim" / "smoke" / "npu_host.py"
    session.run(sys.executable, "-I", str(check), external=True, log=False)
    env = ROOT / ".nox" / "npu-smoke"
    uv = envs.find_uv()
    host = host_python()
    make = [uv, "venv", "--quiet", "--clear", "--seed", "--system-site-packages", "--no-project", "--python", host]
    session.run(*make, str(env), external=True)
    python = str(env / "bin" / "python")
    show_host_packages(Path(host), Path(python))
    wheels = ROOT / ".nox" / "npu-smoke-wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    for package in NPU_PACKAGES:
        session.run(uv, "build", "--quiet", "--wheel", "--package", package, "--out-dir", str(wheels), external=True)
    # pip, not uv: it counts the host's packages as installed, so that only what the host lacks is added here.
    ours = [str(path) for path in sorted(wheels.glob("*.whl"))]
    session.run(python, "-m", "pip", "install", "--quiet", *ours, external=True)
    session.run(python, "-m", "ascend_sim.smoke", "npu", *session.posargs, external=True)


def device_tests(session: nox.Session) -> None:
    """Run the tests marked `device` with the host's own torch, or with one installed here where the host has none."""
    env = ROOT / ".nox" / "device-tests"
    python = env / "bin" / "python"
    uv = envs.find_uv()
    host = host_python()
    probe = "import torch; a = torch.accelerator; print(a.current_accelerator() if a.is_available() else 'none')"
    has_torch = subprocess.run([host, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    base = ["--system-site-packages", "--python", host] if has_torch else ["--python", envs.DEFAULT_PYTHON]
    session.run(uv, "venv", "--quiet", "--clear", "--no-project", *base, str(env), external=True)
    if has_torch:
        show_host_packages(Path(host), python)
    else:
        row = envs.row_of(default_pair())
        try:
            envs.install_torch(python, row["cpu"]["torch"], session.log)
        except envs.EnvError as error:
            session.error(str(error))
    packages = [str(ROOT / "packages" / name) for name in ("vllm-pairs", "kv-plan-guard")]
    needs = ["pytest>=8.3", "filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec"]
    session.run(uv, "pip", "install", "--quiet", "--python", str(python), *needs, *packages, external=True)
    done = subprocess.run([str(python), "-c", probe], capture_output=True, text=True, check=False)
    accelerator = done.stdout.strip()
    if accelerator in ("", "none"):
        session.warn("no accelerator here: copies are synchronous, and what needs a device queue is skipped")
    else:
        session.log(f"accelerator: {accelerator}")
    files = [str(path) for path in sorted((ROOT / "tests").glob("test_*_device.py"))]
    session.run(str(python), "-m", "pytest", *files, *session.posargs, external=True)


def show_host_packages(host: Path, python: Path) -> None:
    """Let an environment made from `host` see its packages also where `host` is a virtual environment itself.

    `--system-site-packages` then means the interpreter below it. `addsitedir` follows the .pth files of editable
    installs, which a plain path would not.
    """

    def ask(executable: Path, code: str) -> list[str]:
        done = subprocess.run([str(executable), "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    code = "import site, sys; print(*site.getsitepackages() if sys.prefix != sys.base_prefix else (), sep=chr(10))"
    folders = [line for line in ask(host, code) if line]
    if folders:
        (own,) = ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
        (Path(own) / "_host_packages.pth").write_text("".join(lines), encoding="utf-8")


def bench_env(script: Path) -> str:
    """Which environment a benchmark asks for in its header comment `# env: light|engine`."""
    found = re.search(r"^# env: (light|engine)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise SystemExit(f"{script.name}: no header comment `# env: light` or `# env: engine`")
    return found.group(1)


def bench(session: nox.Session) -> None:
    """Run benchmarks/NAME.py in the environment its header names."""
    scripts = {
        BENCH_NAMES.get(path.stem, path.stem): path
        for path in sorted(ROOT.glob("benchmarks/*.py"))
        if not path.stem.startswith("_")
    }
    if not session.posargs or session.posargs[0] not in scripts:
        session.error(f"name a benchmark after `--`: {', '.join(scripts) or 'there is none yet'}")
    script = scripts[session.posargs[0]]
    if bench_env(script) == "engine":
        pairs, rest = split_pairs(session)
        for pair in pairs:
            session.run(
                ensure(session, pair), str(script), *rest[1:], env=ENGINE_ENV | {"KIT_PAIR": pair}, external=True
            )
        return
    run_light(session, script, *session.posargs[1:])


def run_light(session: nox.Session, script: Path, *arguments: str) -> None:
    """Run a script in the environment of our own packages, without torch and vLLM."""
    own = {"UV_PROJECT_ENVIRONMENT": str(ROOT / ".nox" / "light")}
    session.run(*light_command("python", str(script)), *arguments, env=own, external=True)


def layerwise_study(session: nox.Session) -> None:
    """Simulate the cells, run the decisive ones on real threads and in the engine, join and judge; goes on if stopped.

    On an Ascend host, with `--npu`: the host's own packages serve a model instead; see `tools/layerwise_npu.py`.
    """
    script = str(ROOT / "tools" / "layerwise_study.py")
    if "--npu" in session.posargs:
        rest = [word for word in session.posargs if word != "--npu"]
        npu_script = str(ROOT / "tools" / "layerwise_npu.py")
        session.run(host_python(), npu_script, *rest, external=True)
        return
    pairs, rest = split_pairs(session)
    out = ROOT / "out" / "layerwise-study"
    env = {"UV_PROJECT_ENVIRONMENT": str(ROOT / ".nox" / "light"), "KIT_PAIR": pairs[0]}
    words = ("--out", str(out), *rest)
    session.run(*light_command("python", script, "simulate", *words), env=env, external=True)
    session.run(*light_command("python", script, "job", *words), env=env, external=True)
    python = ensure(session, pairs[0])
    for name in ("layerwise_run", "layerwise_engine"):
        runner = str(ROOT / "tests" / f"{name}.py")
        session.run(python, runner, str(out / f"{name}.json"), env=ENGINE_ENV | {"KIT_PAIR": pairs[0]}, external=True)
    packet = ROOT / "docs" / "layerwise"
    session.run(*light_command("python", script, "join", *words, "--packet", str(packet)), env=env, external=True)


def light_command(*words: str) -> list[str]:
    """A command in the environment of the packages alone, without an engine."""
    return [envs.find_uv(), "run", "--frozen", "--quiet", "--all-packages", *words]


def claims(session: nox.Session) -> None:
    """Check that every page of the claims says what its packet says; writing them is `tools/claims.py`."""
    light = {"UV_PROJECT_ENVIRONMENT": str(ROOT / ".nox" / "light")}
    session.run(*light_command("python", str(ROOT / "tools" / "claims.py"), "--check"), env=light, external=True)


def repro_pairs(script: Path) -> list[str]:
    """The pairs that a reproduction is about, from its header comment `# pairs: ID ...`; the first is its default."""
    found = re.search(r"^# pairs: ([0-9. ]+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise SystemExit(f"{script.name}: no header comment `# pairs: ID ...`")
    return found.group(1).split()


def repro(session: nox.Session) -> None:
    """Run repro/NAME.py in the environment of each chosen pair; it fails where the fault is not shown."""
    names = sorted(path.stem for path in ROOT.glob("repro/*.py") if not path.stem.startswith("_"))
    words = list(session.posargs)
    if not words or words[0] not in names:
        session.error(f"name a reproduction after `--`: {', '.join(names)}")
    script = ROOT / "repro" / f"{words[0]}.py"
    known = repro_pairs(script)
    if "--all-pairs" in words:
        pairs = known
    elif "--pair" in words:
        pairs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--pair"]
    else:
        pairs = known[:1]
    for pair in pairs:
        session.run(ensure(session, pair), str(script), env=ENGINE_ENV | {"KIT_PAIR": pair}, external=True)
