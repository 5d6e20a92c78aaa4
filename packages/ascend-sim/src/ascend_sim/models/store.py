"""The cache of checkpoints: written whole or not at all, found again by digest, checked by hash before reuse."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_sim.models import tokenizer
from ascend_sim.models.errors import CacheError

if TYPE_CHECKING:
    from ascend_sim.models.recipe import Recipe

CACHE_VARIABLE = "ASCEND_SIM_CACHE"
STAMP = "ascend_sim.json"


def default_cache() -> Path:
    """Return `$ASCEND_SIM_CACHE`, else the user's cache folder of this system, with `ascend-sim` in it."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ascend-sim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascend-sim"


def write(name: str, recipe: Recipe, cache_dir: Path, seed: int) -> Path:
    """Return the checkpoint directory of this recipe and seed, made if it is not there whole.

    Raises:
        CacheError: the folder cannot be written, or `safetensors` is not installed.
    """
    target = cache_dir / "models" / f"{name}-{seed}-{recipe.digest(name, seed)}"
    if is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            _fill(made, recipe, seed)
            _move(made, target)
    except OSError as error:
        raise CacheError(
            f"model {name!r} cannot be written to {str(target)!r}: {error.strerror or error}. "
            f"Free some space or set {CACHE_VARIABLE} to a writable folder."
        ) from error
    return target


def is_whole(target: Path) -> bool:
    """Return whether each file that the stamp names is there with the hash it was written with."""
    try:
        stamp = json.loads((target / STAMP).read_text("utf-8"))
        return all(_sha256(target / file) == digest for file, digest in stamp["files"].items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _move(made: Path, target: Path) -> None:
    """Put the finished folder in place; another process may have been first, and then its folder is the same."""
    if target.exists() and not is_whole(target):
        shutil.rmtree(target)
    try:
        made.rename(target)
    except OSError:
        if not is_whole(target):
            raise


def _fill(folder: Path, recipe: Recipe, seed: int) -> None:
    (folder / "config.json").write_text(json.dumps(dict(recipe.config), indent=1) + "\n", "utf-8")
    for file, text in tokenizer.files().items():
        (folder / file).write_text(text, "utf-8")
    _save_weights(folder / "model.safetensors", recipe, seed)
    hashes = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    (folder / STAMP).write_text(json.dumps({"seed": seed, "files": hashes}, indent=1) + "\n", "utf-8")


def _save_weights(path: Path, recipe: Recipe, seed: int) -> None:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise CacheError("a tiny model needs `safetensors`: pip install safetensors (vLLM brings it)") from error
    # Bytes first: the library's own file writer reports a full disk as its own error type, Python's as OSError.
    path.write_bytes(save(recipe.draw(seed), metadata={"format": "pt"}))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
