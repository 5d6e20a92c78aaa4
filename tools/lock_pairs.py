"""Write the locked requirements of each pair under pairs/ (run by `nox -s lock-pairs`).

For a pair ID three files are written:

- ID.cpu.txt     what a CPU environment installs, with hashes; torch's line has none, its source differs
- ID.plugin.txt  vllm-ascend's sdist, with its hash: built without isolation and without dependencies
- ID.npu.txt     the stack of a real NPU host; never installed here

None holds a path of a machine or the address of a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import envs

# Left out of every CPU environment: nothing here needs them and each would pull a second torch build or a large binary.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "opencv-python-headless")
# What a CPU torch asks for itself; torch is left out of the resolution, so its own needs are named here.
TORCH_NEEDS = ("filelock", "fsspec>=0.8.5", "jinja2", "networkx>=2.5.1", "sympy>=1.13.3", "typing-extensions>=4.10.0")
# vllm-ascend is installed without its dependencies; these are what it imports on the CPU, and what its build needs.
PLUGIN_NEEDS = ("scipy", "pandas", "setuptools<80", "setuptools-scm", "wheel")
TEST_NEEDS = ("pytest>=8.3", "hypothesis>=6.120")
NEVER = "; sys_platform == 'never'"


def requirement_name(line: str) -> str:
    """The normalised distribution name at the start of a requirement line."""
    found = re.match(r"[A-Za-z0-9._-]+", line)
    return re.sub(r"[-_.]+", "-", found.group(0)).lower() if found else ""


def compile_lock(requirements: list[str], overrides: list[str], python: str) -> list[list[str]]:
    """Resolve with uv for every Python from `python` on; returns one block of lines (requirement, hashes) each."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, override, out = (Path(folder) / name for name in ("in.txt", "override.txt", "out.txt"))
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        override.write_text("\n".join(overrides) + "\n", encoding="utf-8")
        command = [envs.find_uv(), "pip", "compile", str(wanted), "--override", str(override), "--universal"]
        command += ["--python-version", python, "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
        command += ["--no-emit-index-url", "--no-emit-find-links", "--output-file", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise envs.EnvError(f"uv pip compile failed:\n{done.stderr.strip()}")
        blocks: list[list[str]] = []
        for line in out.read_text(encoding="utf-8").splitlines():
            if line.startswith((" ", "\t")):
                blocks[-1].append(line)
            elif line.strip():
                blocks.append([line])
        return blocks


def cpu_lock(row: dict[str, Any], workspace: list[str]) -> str:
    """The text of ID.cpu.txt."""
    cpu = row["cpu"]
    requirements = [f"{cpu['distribution']}=={row['vllm']}", *TORCH_NEEDS, *PLUGIN_NEEDS, *TEST_NEEDS, *workspace]
    overrides = [f"{name}{NEVER}" for name in LEFT_OUT]
    blocks = compile_lock(requirements, overrides, "3.11")
    kept = [block for block in blocks if requirement_name(block[0]) not in LEFT_OUT]
    kept.append([f"torch=={cpu['torch']}"])
    kept.sort(key=lambda block: requirement_name(block[0]))
    head = [
        f"# CPU environment of pair {row['id']}, Python 3.11 and newer. Made by `nox -s lock-pairs`; do not edit.",
        f"# {', '.join(LEFT_OUT[1:])} are left out on purpose; torch has no hash: its CPU build differs by machine.",
        "# Install torch first, then this file with --no-deps.",
    ]
    return "\n".join([*head, *(line for block in kept for line in block)]) + "\n"


def plugin_lock(row: dict[str, Any]) -> str:
    """The text of ID.plugin.txt."""
    head = [
        f"# vllm-ascend of pair {row['id']}, built from its sdist without dependencies and without build isolation",
        "# (COMPILE_CUSTOM_KERNELS=0 SOC_VERSION=ascend910b1): Python only, no Ascend operator inside.",
    ]
    return (
        "\n".join([*head, f"vllm-ascend=={row['vllm_ascend']} \\", f"    --hash=sha256:{row['sdist_sha256']}"]) + "\n"
    )


def npu_requirements(row: dict[str, Any]) -> str:
    """The text of ID.npu.txt: versions as vllm-ascend's own files name them, and the overrides they need."""
    npu = row["npu"]
    lines = [
        f"# NPU host of pair {row['id']}: what vllm-ascend {row['vllm_ascend']} asks for. Never installed or run here.",
        f"# CANN {npu['cann'] or 'not named in the sdist'}, Python {row['python']}.",
        "# These pins contradict vLLM's own (vLLM pins another torch): install vLLM with --no-deps or with this",
        "# file as overrides, e.g.  uv pip install --override ID.npu.txt -r ID.npu.txt",
        f"vllm=={row['vllm']}",
        f"vllm-ascend=={row['vllm_ascend']}",
        *(f"{name}=={version}" for name, version in npu.get("requires", {}).items()),
    ]
    return "\n".join(lines) + "\n"


def workspace_needs(root: Path) -> list[str]:
    """What our own packages declare, other workspace packages left out."""
    projects = [envs.project_table(path.parent) for path in sorted(root.glob("packages/*/pyproject.toml"))]
    ours = {requirement_name(project["name"]) for project in projects}
    needs = {need for project in projects for need in project.get("dependencies", [])}
    return sorted(need for need in needs if requirement_name(need) not in ours)


def write(path: Path, text: str) -> None:
    """Replace a file in one step, so that an interrupted run leaves the old one."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def main(argv: list[str] | None = None) -> int:
    """Lock the named pairs, or all that are installed here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", nargs="*", help="pair ids (default: every pair that has a CPU environment)")
    wanted = parser.parse_args(argv).pairs
    try:
        rows = [envs.row_of(pair_id) for pair_id in wanted] if wanted else envs.buildable_rows()
        needs = workspace_needs(envs.ROOT)
        for row in rows:
            print(f"lock-pairs: {row['id']}", flush=True)
            write(envs.lock_path(row["id"], "cpu"), cpu_lock(row, needs))
            if row.get("vllm_ascend"):
                write(envs.lock_path(row["id"], "plugin"), plugin_lock(row))
                write(envs.lock_path(row["id"], "npu"), npu_requirements(row))
    except envs.EnvError as error:
        print(f"lock-pairs: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
