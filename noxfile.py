"""Every check and measurement of the kit, each one command. `uvx nox --list` shows them."""

import os
import shutil
import sys
from pathlib import Path

import nox

if sys.version_info < (3, 11):  # noqa: UP036  # nox itself runs on older ones; the helpers read TOML with tomllib
    raise SystemExit("the sessions need Python 3.11 or newer: run `uvx --python 3.11 nox`")

ROOT = Path(__file__).resolve().parent
TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

import engines  # noqa: E402  # found on the path that was just set
import envs  # noqa: E402

nox.options.default_venv_backend = "uv"
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "types", "imports", "tests", "docs"]

os.environ["UV_PYTHON_DOWNLOADS"] = "never"


def install_group(session: nox.Session, group: str, *flags: str) -> None:
    """Install a dependency group of the root pyproject.toml, at the versions of uv.lock, into the session."""
    only = f"--group={group}" if "--all-packages" in flags else f"--only-group={group}"
    session.run_install(
        envs.find_uv(),
        "sync",
        "--frozen",
        "--quiet",
        only,
        *flags,
        f"--python={session.virtualenv.location}",
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
        external=True,
    )


def tool(session: nox.Session, name: str, *arguments: str) -> None:
    """Run one of the scripts under tools/, which need the standard library only."""
    session.run(sys.executable, str(TOOLS / name), *arguments, external=True)


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Each wheel alone, with its declared dependencies only, on every supported Python found here."""
    tool(session, "wheel_tests.py", *session.posargs)


@nox.session(python=False)
def wheels(session: nox.Session) -> None:
    """Build every package's wheel and source archive into dist/."""
    session.run(envs.find_uv(), "build", "--all-packages", "--out-dir", "dist", external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Rules, formatting, and whether uv.lock fits the packages."""
    install_group(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run(envs.find_uv(), "lock", "--check", "--quiet", external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Mypy: strict on what needs no torch, annotated adapters elsewhere."""
    install_group(session, "types", "--all-packages", "--no-install-workspace")
    session.run("mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """The arrows between the packages (import-linter)."""
    install_group(session, "imports")
    sources = os.pathsep.join(str(path) for path in sorted(ROOT.glob("packages/*/src")))
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": sources})


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated pages and build the site, strictly and offline, into site/."""
    install_group(session, "docs")
    tool(session, "docs_pages.py")
    tool(session, "findings.py")
    engines.claims(session)
    session.run("mkdocs", "build", "--strict", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})
    tool(session, "site_check.py", "site")


@nox.session
def screens(session: nox.Session) -> None:
    """Look at the built site in a real browser, light, dark and phone; needs a Chromium (or fetches one)."""
    session.install("playwright>=1.45,<2")
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        session.run("playwright", "install", "chromium")
    session.run("python", str(TOOLS / "screens.py"))


@nox.session(python=False)
def engine(session: nox.Session) -> None:
    """Tests that need the engine, in a pair's environment: `-- [--quick] [--pair ID|--all-pairs]`."""
    engines.run_tests(session)


@nox.session(python=False, name="cpu-smoke")
def cpu_smoke(session: nox.Session) -> None:
    """Real requests, Ascend runner and plain engine: `-- [--quick] [--pair ID|--all-pairs]`."""
    engines.cpu_smoke(session)


@nox.session(python=False, name="npu-smoke")
def npu_smoke(session: nox.Session) -> None:
    """The same on a real Ascend host, with the host's own packages: `-- --model PATH`."""
    engines.npu_smoke(session)


@nox.session(python=False, name="device-tests")
def device_tests(session: nox.Session) -> None:
    """Kv-plan-guard's snapshot on the accelerator that is here, torch alone; says so where there is none."""
    engines.device_tests(session)


@nox.session(python=False)
def bench(session: nox.Session) -> None:
    """One benchmark: `-- NAME [its options]` runs benchmarks/NAME.py in the environment that its header names."""
    engines.bench(session)


@nox.session(python=False)
def doctor(session: nox.Session) -> None:
    """Every plugin release against every core release, unrun, and against what failed when they were run."""
    engines.run_light(session, ROOT / "benchmarks" / "doctor_matrix.py", *session.posargs)


@nox.session(python=False)
def repro(session: nox.Session) -> None:
    """One fault of upstream, shown on the versions that have it: `-- NAME [--pair ID|--all-pairs]`."""
    engines.repro(session)


@nox.session(python=False)
def evidence(session: nox.Session) -> None:
    """One packet of evidence/, made here; goes on where it was stopped: `-- NAME [--at-most N]`."""
    tool(session, "evidence.py", *session.posargs)


@nox.session(python=False, name="layerwise-study")
def layerwise_study(session: nox.Session) -> None:
    """Layer-wise loads: simulated cells, real threads, verdicts, packet: `-- [--pair ID] [--npu ...]`."""
    engines.layerwise_study(session)


@nox.session(python=False, name="lock-pairs")
def lock_pairs(session: nox.Session) -> None:
    """Write the locked requirements file of each pair into pairs/."""
    tool(session, "lock_pairs.py", *session.posargs)
