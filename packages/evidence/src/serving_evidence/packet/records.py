"""What a packet says of each start and of itself; strict models, because packets come from strangers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Epoch = Annotated[float, Field(ge=0, le=1e11)]
Short = Annotated[str, Field(max_length=4_000)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=-]{0,127}$")]
Number = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class StartRecord(_Model):
    """One complete server start; times are seconds since the epoch."""

    index: Annotated[int, Field(ge=0, le=2_000)]
    pair: Annotated[int, Field(ge=0, le=1_000)]
    arm: Literal["A", "B"]
    attempt: Annotated[int, Field(ge=1, le=10_000)]
    protocol_hash: Hash
    began_at: Epoch
    ready_at: Epoch
    ended_at: Epoch
    port: Annotated[int, Field(ge=1, le=65_535)]
    pid: Annotated[int, Field(ge=1)]
    server_command: tuple[Short, ...]
    active: bool | None
    code_hash: Hash | None
    counters: dict[Name, Number] = {}
    environment: dict[str, Any] = {}
    files: dict[Name, Name]
    teardown_tracebacks: Annotated[int, Field(ge=0)] = 0


class ExclusionRecord(_Model):
    """A start that was begun and does not count, and why; its files are kept."""

    index: Annotated[int, Field(ge=0, le=2_000)]
    arm: Literal["A", "B"]
    attempt: Annotated[int, Field(ge=1, le=10_000)]
    rule: Name
    reason: Short
    at: Epoch


class Deviation(_Model):
    """A change after the protocol was locked: listed for ever, never erased."""

    at: Epoch
    text: Short


class CalibrationRecord(_Model):
    """The A/A calibration that stands behind the verdicts, and the packet or folder that it came from."""

    pairs: Annotated[int, Field(ge=2, le=1_000)]
    false_positive_rate: Annotated[float, Field(ge=0, le=1)]
    metric: Short
    source: Short


class PacketRecord(_Model):
    """packet.json: who ran which protocol when, every start, every exclusion, every deviation."""

    format: Literal["serving-evidence packet"]
    version: Literal[1]
    name: Short
    written_by: Short
    protocol_hash: Hash
    locked_at: Epoch
    who_ran: Short
    independent: bool
    starts: tuple[StartRecord, ...]
    excluded: tuple[ExclusionRecord, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    calibration: CalibrationRecord | None = None
    host: dict[str, Any] = {}


class LedgerEntry(_Model):
    """One packet of a ledger as it was when it was added; `status` is its verdict's then, for who reads only this."""

    packet: Name
    manifest_sha256: Hash
    protocol_sha256: Hash
    status: Literal["REPRODUCED", "NOT_REPRODUCED", "INCONCLUSIVE", "INVALID"]
    added: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    note: Short = ""
