"""The runner: each slot of the plan gets a fresh server, its scenarios, a clean stop; failures are kept and told."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..adapters import read_run
from ..errors import EvidenceError, RunError
from ..packet import build
from ..packet.records import StartRecord
from ..protocol import substitute
from ..schedule import plan
from . import environment, processes
from .state import State, read_counters

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

    from ..packet.records import CalibrationRecord
    from ..protocol import ArmSpec, Protocol, Scenario
    from ..schedule import Slot

_TRACEBACK = b"Traceback (most recent call last)"
_POLL_S = 0.05
_FOLDERS = ("model", "result_dir")


class StartFailedError(EvidenceError):
    """One start failed under a rule of the protocol; the start is excluded and tried again."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class Runner:
    """Runs a protocol in a folder, from wherever the folder stands, to a packet."""

    def __init__(self, folder: Path, declared: Protocol, text: str) -> None:
        environment.check_cpus("server_cpus", declared.host.server_cpus)
        environment.check_cpus("client_cpus", declared.host.client_cpus)
        environment.code_hash(declared.code_paths)
        environment.model_hash(declared.model)
        self.model = Path(declared.model).absolute() if declared.model else None
        self.state = State(folder.absolute(), declared, text)
        self.protocol = self.state.protocol
        self.slots = plan(self.protocol.design)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.state.close()

    def run(
        self,
        *,
        calibration: CalibrationRecord | None = None,
        at_most: int | None = None,
        on_progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    ) -> Path | None:
        """Measure what is missing and write the packet; returns its folder. Raises RunError when a slot gives up.

        at_most: stop cleanly after so many attempts, done or not, and return None when starts are still missing.
        """
        state = self.state
        processes.sweep(state.run_id)
        state.recover()
        attempts = 0
        for slot in self.slots:
            done = sum(state.done(other) for other in self.slots)
            while not state.done(slot):
                if at_most is not None and attempts >= at_most:
                    return None
                attempts += 1
                if state.failures(slot) >= self.protocol.design.attempts:
                    last = [record for record, _ in state.excluded() if record.index == slot.index][-1]
                    raise RunError(
                        f"start {slot.name} failed {state.failures(slot)} times, last: {last.rule}: {last.reason}; "
                        f"see {state.folder / 'excluded'}"
                    )
                on_progress(done, len(self.slots), f"start {slot.name}, attempt {state.attempt(slot)}")
                self._attempt(slot)
        packet = state.folder / "packet"
        on_progress(len(self.slots), len(self.slots), "packet")
        if not packet.exists():
            build(
                packet,
                protocol=self.protocol,
                protocol_text=state.protocol_text,
                locked_at=state.locked_at,
                starts=state.starts(),
                excluded=state.excluded(),
                deviations=state.deviations(),
                calibration=calibration,
                host=environment.host(),
            )
        return packet

    def _attempt(self, slot: Slot) -> None:
        work = self.state.begin(slot)
        try:
            record = self._measure(slot, work)
        except StartFailedError as failure:
            if failure.rule not in self.protocol.exclude_when:
                raise RunError(f"start {slot.name}: {failure} ({failure.rule} is no exclusion rule here)") from None
            self.state.exclude(slot, failure.rule, str(failure))
        except KeyboardInterrupt:
            self.state.exclude(slot, "runner-killed", "interrupted from the keyboard")
            raise
        else:
            self.state.complete(slot, record)

    def _measure(self, slot: Slot, work: Path) -> StartRecord:
        spec, host = self.protocol.arms[slot.arm], self.protocol.host
        port = processes.free_port()
        variables = {**os.environ, **spec.environment}
        places = self._places(spec, port, work)
        command = substitute(spec.command, places)
        facts = environment.before_start(variables)
        code = environment.code_hash(self.protocol.code_paths)
        facts["model_sha256"] = environment.model_hash(self.protocol.model)
        began = time.time()
        log = work / "server.log"
        server = processes.spawn(
            command,
            environment=variables,
            log=log,
            folder=work,
            cpus=host.server_cpus,
            run_id=self.state.run_id,
        )
        try:
            why = processes.wait_ready(places["base_url"] + host.ready_path, server, host.ready_timeout_s)
            if why == "died":
                raise StartFailedError(
                    "server-died", f"the server ended with status {server.returncode} before it was ready"
                )
            if why is not None:
                raise StartFailedError("server-not-ready", f"the server was not ready after {host.ready_timeout_s:g} s")
            ready = time.time()
            answer = processes.http_get(places["base_url"] + "/version")
            facts["server_version"] = answer.decode("utf-8", "replace")[:500] if answer else None
            if self.protocol.warm_up is not None:
                self._client("warm-up", self.protocol.warm_up, places | {"result_file": "warm-up.json"}, server, work)
            files = {}
            for scenario in self.protocol.scenarios:
                files[scenario.name] = self._scenario(scenario, places, server, work)
            counters = self._counters(places, server, work)
            if server.poll() is not None:
                raise StartFailedError(
                    "server-died", f"the server ended with status {server.returncode} after the last scenario"
                )
            stopped_at = log.stat().st_size
        finally:
            processes.stop(server, host.stop_timeout_s)
            processes.sweep(self.state.run_id)
        return StartRecord(
            index=slot.index,
            pair=slot.pair,
            arm=slot.arm,
            attempt=self.state.attempt(slot),
            protocol_hash=self.protocol.hash,
            began_at=began,
            ready_at=ready,
            ended_at=time.time(),
            port=port,
            pid=server.pid,
            # Folders stay placeholders: a packet travels, and its readers need no path of this host.
            server_command=tuple(substitute(spec.command, {k: v for k, v in places.items() if k not in _FOLDERS})),
            active=_active(spec, log),
            code_hash=code,
            counters=counters,
            environment=facts,
            files=files,
            teardown_tracebacks=log.read_bytes()[stopped_at:].count(_TRACEBACK),
        )

    def _places(self, spec: ArmSpec, port: int, work: Path) -> dict[str, str]:
        address = self.protocol.host.address
        return {
            "host": address,
            "port": str(port),
            "base_url": f"http://{address}:{port}",
            "result_dir": str(work),
            "additional_config": json.dumps(spec.additional_config or {}, sort_keys=True),
            # Relative to the folder that server and client run in, so that results name no path of this host.
            "model": os.path.relpath(self.model, work) if self.model else "",
        }

    def _scenario(self, scenario: Scenario, places: dict[str, str], server: subprocess.Popen[bytes], work: Path) -> str:
        name = f"{scenario.name}.json"
        self._client(
            scenario.name, scenario.command, places | {"result_file": name}, server, work, timeout_s=scenario.timeout_s
        )
        try:
            found = read_run(work / name) if (work / name).exists() else []
        except EvidenceError as problem:
            raise StartFailedError("result-unreadable", str(problem)) from None
        if len(found) != 1:
            raise StartFailedError("result-unreadable", f"{scenario.name}: the client left no result in {name}")
        if found[0].failed and "requests-failed" in self.protocol.exclude_when:
            raise StartFailedError("requests-failed", f"{scenario.name}: {found[0].failed} requests failed")
        return name

    def _client(
        self,
        name: str,
        command: tuple[str, ...],
        places: dict[str, str],
        server: subprocess.Popen[bytes],
        work: Path,
        timeout_s: float = 3_600.0,
    ) -> None:
        client = processes.spawn(
            substitute(command, places),
            environment=os.environ,
            log=work / f"client-{name}.log",
            folder=work,
            cpus=self.protocol.host.client_cpus,
            run_id=self.state.run_id,
        )
        deadline = time.monotonic() + timeout_s
        try:
            while client.poll() is None:
                if server.poll() is not None:
                    raise StartFailedError(
                        "server-died", f"the server ended with status {server.returncode} during {name}"
                    )
                if time.monotonic() > deadline:
                    raise StartFailedError("client-failed", f"{name}: the client took longer than {timeout_s:g} s")
                time.sleep(_POLL_S)
        finally:
            processes.stop(client, 5.0)
        if client.returncode != 0:
            raise StartFailedError("client-failed", f"{name}: the client ended with status {client.returncode}")
        if server.poll() is not None:
            raise StartFailedError("server-died", f"the server ended with status {server.returncode} during {name}")

    def _counters(self, places: dict[str, str], server: subprocess.Popen[bytes], work: Path) -> dict[str, float]:
        if self.protocol.mechanism is None:
            return {}
        self._client(
            "mechanism", self.protocol.mechanism.command, places | {"result_file": "counters.json"}, server, work
        )
        path = work / "counters.json"
        if not path.exists():
            raise StartFailedError("result-unreadable", "the mechanism command left no {result_dir}/{result_file}")
        try:
            return read_counters(path.read_bytes())
        except RunError as problem:
            raise StartFailedError("result-unreadable", str(problem)) from None


def _active(spec: ArmSpec, log: Path) -> bool | None:
    if spec.active_log is None:
        return None
    return re.search(spec.active_log, log.read_text(encoding="utf-8", errors="replace")) is not None


def describe(slots: Sequence[Slot]) -> list[dict[str, Any]]:
    """The plan as plain values, for `run --dry-run`."""
    return [{"start": slot.name, "arm": slot.arm, "pair": slot.pair} for slot in slots]
