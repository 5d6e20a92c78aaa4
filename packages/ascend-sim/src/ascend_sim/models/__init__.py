"""Tiny random checkpoints with a tokenizer, made on demand and never downloaded.

Needs numpy and safetensors; neither torch nor vLLM.
"""

from __future__ import annotations

from pathlib import Path

from ascend_sim.models import store
from ascend_sim.models.catalog import ARCHITECTURES, Architecture, Place, find
from ascend_sim.models.errors import CacheError, ModelError, RefusedModelError, UnknownModelError

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "CacheError",
    "ModelError",
    "Place",
    "RefusedModelError",
    "UnknownModelError",
    "build",
    "find",
    "resolve",
]


def build(name: str, cache_dir: str | Path | None = None, seed: int = 0) -> Path:
    """Return the checkpoint directory of a tiny model, written if the cache does not hold it whole.

    The same name and seed give the same bytes. Default cache: `$ASCEND_SIM_CACHE`, else the user's cache folder.

    Raises:
        UnknownModelError: no such name.
        CacheError: the folder cannot be written, or safetensors is missing.
    """
    folder = store.default_cache() if cache_dir is None else Path(cache_dir)
    return store.write(name, find(name).recipe(), folder, seed)


def resolve(model: str, place: Place, cache_dir: str | Path | None = None, seed: int = 0) -> Path:
    """Return the directory to serve for `--model`: a tiny model by name, or the user's own directory.

    Raises:
        RefusedModelError: the architecture of that name does not run in `place`; the message has the reason.
        UnknownModelError: neither a name nor a directory with a `config.json`.
    """
    if model not in ARCHITECTURES:
        own = Path(model)
        if (own / "config.json").is_file():
            return own
        if own.exists() or len(own.parts) > 1:
            raise UnknownModelError(f"{model!r} is not a model directory: it holds no `config.json`")
    find(model).require(place)
    return build(model, cache_dir, seed)
