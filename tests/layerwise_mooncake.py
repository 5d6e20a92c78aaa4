"""A real Mooncake master and store over TCP on loopback, behind vllm-ascend's own `MooncakeBackend`.

vllm-ascend's backend accepts the protocol "ascend" only, at one place in its `__init__`: that one is written anew
here; every data method is upstream's. Mooncake's wheel is in a folder of its own (`KIT_MOONCAKE`), since an environment
in which it is installed would lose the simulator's stand-in.
"""

from __future__ import annotations

import ctypes.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

WHEEL = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
LIBRARIES = {
    "ibverbs": "libibverbs1", "rdmacm": "librdmacm1", "numa": "libnuma1", "uring": "liburing2", "curl": "libcurl4",
}  # fmt: skip
STAGING = 1 << 20


def missing() -> str | None:
    """What this host lacks for Mooncake, with the command that brings it; None where nothing is missing."""
    packages = [package for name, package in LIBRARIES.items() if ctypes.util.find_library(name) is None]
    if packages:
        return f"Debian packages are missing: apt-get install {' '.join(packages)}"
    folder = os.environ.get("KIT_MOONCAKE", "")
    if not (Path(folder) / "mooncake" / "store.so").exists():
        return f"KIT_MOONCAKE={folder!r} holds no Mooncake: uv pip install --no-deps --target FOLDER {WHEEL}"
    return None


class Master:
    """One `mooncake_master` of this process, on a free port."""

    def __init__(self, folder: Path) -> None:
        place = Path(os.environ["KIT_MOONCAKE"])
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = (folder / f"mooncake-{self.port}.log").open("w")
        binary = place / "mooncake" / "mooncake_master"
        binary.chmod(0o755)
        self.process = subprocess.Popen(
            [str(binary), "--port", str(self.port), "--metrics_port", "0"], stdout=self.log, stderr=subprocess.STDOUT
        )
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"mooncake_master did not listen on port {self.port}: see {self.log.name}")

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait(timeout=10)
        self.log.close()


def make_pool(master: Master, **options: Any) -> Any:
    """A store of `master` with the interface that the rig wants of a pool."""
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.backend import mooncake_backend

    class Loopback(mooncake_backend.MooncakeBackend):
        """`MooncakeBackend` with a TCP store; the rest are the rig's own needs."""

        def __init__(self) -> None:
            from mooncake.store import MooncakeDistributedStore

            self.config = mooncake_backend.MooncakeStoreConfig(
                metadata_server="P2PHANDSHAKE", global_segment_size=256 << 20, local_buffer_size=32 << 20,
                protocol="tcp", device_name="", master_server_address=f"127.0.0.1:{master.port}",
                preferred_segment=False, prefer_alloc_in_same_node=False,
            )  # fmt: skip
            self.device_id, self.local_seg = 0, "127.0.0.1"
            self._use_fabric_mem, self._use_store_independent_te = False, True
            self._lazy_init, self._store_initialized = False, True
            # Mooncake copies inside one process by default: over TCP, as between two.
            os.environ["MC_STORE_MEMCPY"] = "0"
            self.store = MooncakeDistributedStore()
            code = self.store.setup(
                "127.0.0.1", self.config.metadata_server, self.config.global_segment_size,
                self.config.local_buffer_size, "tcp", "", self.config.master_server_address,
            )  # fmt: skip
            if code != 0:
                raise RuntimeError(f"Mooncake's setup returned {code}")
            self.staging = np.zeros(STAGING, dtype=np.uint8)
            self.register_buffer([self.staging.ctypes.data], [self.staging.nbytes])
            self.device = self
            self.objects: dict[str, Any] = {}
            self.leases: dict[str, int] = {}
            self.errors: list[str] = []
            self.most_in_flight: dict[int, int] = {}
            self.seconds: Callable[[int, int], float] = lambda direction, layer: 0.0
            self.layer_of: Callable[[str, int], int] = lambda key, offset: 0
            self.observe: Callable[[int, int], None] = lambda direction, layer: None
            self.kill_at: int | None = None
            self.commits: list[list[int]] = []

        def add(self, array: np.ndarray) -> None:
            """Device memory that transfers may touch."""
            self.register_buffer([array.ctypes.data], [array.nbytes])

        def register_buffer(self, ptrs: list[int], lengths: list[int]) -> None:
            """With the store itself, as upstream does where the store has an engine of its own."""
            for pointer, length in zip(ptrs, lengths, strict=True):
                if (code := self.store.register_buffer(pointer, length)) != 0:
                    raise RuntimeError(f"register_buffer returned {code}")

        def set_device(self) -> None:
            """There is one device."""

        # -- what the threads call -------------------------------------------------------------------------------
        def batch_copy_get(self, keys: Any, all_buffers: Any, all_sizes: Any, all_src_offsets: Any) -> list[int]:
            layer = self.layer_of(keys[0], all_src_offsets[0][0])
            self.observe(1, layer)
            if layer == self.kill_at:
                master.kill()
            time.sleep(self.seconds(1, layer))
            return super().batch_copy_get(keys, all_buffers, all_sizes, all_src_offsets)

        def batch_copy_put(self, keys: Any, all_buffers: Any, all_sizes: Any, all_dst_offsets: Any) -> list[int]:
            layer = self.layer_of(keys[0], all_dst_offsets[0][0])
            self.observe(0, layer)
            time.sleep(self.seconds(0, layer))
            return super().batch_copy_put(keys, all_buffers, all_sizes, all_dst_offsets)

        def get(self, keys: Any, addrs: Any, sizes: Any) -> Any:
            layer = self.layer_of(keys[0], 0)
            self.observe(1, layer)
            if layer == self.kill_at:
                master.kill()
            time.sleep(self.seconds(1, layer))
            return super().get(keys, addrs, sizes)

        def put(self, keys: Any, addrs: Any, sizes: Any) -> None:
            layer = self.layer_of(keys[0], 0)
            self.observe(0, layer)
            time.sleep(self.seconds(0, layer))
            super().put(keys, addrs, sizes)

        def batch_commit(self, keys: list[str]) -> list[int]:
            codes = super().batch_commit(keys)
            self.commits.append(codes)
            return codes

        # -- what the rig calls ----------------------------------------------------------------------------------
        def store_objects(self, contents: dict[str, np.ndarray]) -> list[int]:
            places = self._places({key: content.nbytes for key, content in contents.items()})
            for key, content in contents.items():
                start = places[key] - self.staging.ctypes.data
                self.staging[start : start + content.nbytes] = content
            sizes = [content.nbytes for content in contents.values()]
            codes = self.store.batch_put_from(list(contents), list(places.values()), sizes)
            if any(codes):
                raise RuntimeError(f"batch_put_from returned {codes}")
            return [1] * len(contents)

        def read_objects(self, sizes: dict[str, int]) -> dict[str, np.ndarray]:
            self.staging[:] = 0
            places = self._places(sizes)
            codes = self.store.batch_get_into(list(sizes), list(places.values()), list(sizes.values()))
            if codes != list(sizes.values()):
                self.errors.append(f"batch_get_into returned {codes}")
            base = self.staging.ctypes.data
            return {key: self.staging[place - base :][: sizes[key]].copy() for key, place in places.items()}

        def _places(self, sizes: dict[str, int]) -> dict[str, int]:
            places, end = {}, self.staging.ctypes.data
            for key, size in sizes.items():
                places[key] = end
                end += size
            return places

        def batch_get_start(self, keys: list[str]) -> list[int]:
            for key in keys:
                self.leases[key] = self.leases.get(key, 0) + 1
            return super().batch_get_start(keys)

        def batch_get_end(self, keys: list[str]) -> int:
            for key in keys:
                self.leases[key] = self.leases.get(key, 0) - 1
            return super().batch_get_end(keys)

        def open_leases(self) -> list[str]:
            return sorted(key for key, count in self.leases.items() if count)

        def forget(self) -> None:
            """Objects of earlier steps stay: their keys are not used again."""

    return Loopback()
