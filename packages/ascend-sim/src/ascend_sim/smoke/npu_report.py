"""``npu-smoke``'s summary, tables and folder: everything that ran, hashed, so that it can be packed as evidence."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ascend_sim.smoke.npu_plan import CONTROL, DEVICES, OFF, Outcome, Plan, Profile, Row
from ascend_sim.smoke.results import write_json
from ascend_sim.smoke.summary import SEED, host

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest-sha256.txt"
_SHOWN = {"equal": "green", "ran": "green", "recorded": "green", "differs": "red", "failed": "red"}


def figures(outcome: Outcome) -> dict[str, float]:
    """Flat figures; the profile's are of the first mode that has one, `on` the worst of the arms with a hook."""
    compared = [row for row in outcome.rows if row.comparison]
    made: dict[str, float] = {
        "modes_ran": len({row.mode for row in outcome.rows if row.status in ("ran", "equal", "differs")}),
        "rows_equal": sum(row.status == "equal" for row in outcome.rows),
        "rows_compared": len(compared),
        "tokens_equal": sum(row.comparison.equal for row in compared if row.comparison),
        "tokens_total": sum(row.comparison.total for row in compared if row.comparison),
        **{
            name: sum(row.status == status for row in outcome.rows)
            for name, status in (
                ("rows_refused", "refused"),
                ("rows_declined", "declined"),
                ("rows_failed", "failed"),
                ("rows_left_out", "left out"),
            )
        },
        "seconds": round(outcome.seconds, 3),
    }
    recorded = [one for one in outcome.profiles if one.status == "recorded"]
    first = [one for one in recorded if one.mode == recorded[0].mode]
    for side, chosen in (
        ("off", [one for one in first if one.arm == OFF]),
        ("on", [one for one in first if one.arm not in (OFF, CONTROL)]),
    ):
        for name in ("d2h", "wait_event", "host_wait"):
            if chosen:
                made[f"profile_{name}_{side}"] = max(one.counts[name] for one in chosen)
    return made


def summary(plan: Plan, outcome: Outcome, pair: dict[str, Any], npu_host: dict[str, Any]) -> dict[str, Any]:
    """The run as one object; a simulated one has another name and says so in `device`."""
    return {
        "name": "npu-smoke-simulated" if plan.simulated else "npu-smoke",
        "version": 1,
        "device": DEVICES[plan.device],
        "simulated": plan.simulated,
        "pair": pair["id"],
        "host": {**host(), **{key: npu_host[key] for key in ("chip", "driver", "cann") if key in npu_host}},
        "seed": SEED,
        "figures": figures(outcome),
        "stages": outcome.stages,
        "rows": [_row(row) for row in outcome.rows],
        "profiles": [_profile(one) for one in outcome.profiles],
        "passed": outcome.passed,
    }


def _row(row: Row) -> dict[str, Any]:
    result, comparison = row.result, row.comparison
    return {
        "mode": row.mode,
        "scenario": row.unit,
        "arm": row.arm,
        "status": row.status,
        "reason": row.reason,
        "tokens_equal": comparison.equal if comparison else 0,
        "tokens_total": comparison.total if comparison else 0,
        "steps": result.steps if result else 0,
        "preemptions": result.preemptions if result else 0,
        "prefix_hits": result.prefix_hits if result else 0,
        "drafted": result.drafted if result else 0,
        "accepted": result.accepted if result else 0,
        "step_ms": round(result.ms_per_decode_step, 3) if result else 0.0,
        "hooks": list(row.hooks),
    }


def _profile(one: Profile) -> dict[str, Any]:
    return {
        "mode": one.mode,
        "arm": one.arm,
        "status": one.status,
        "reason": one.reason,
        "source": one.source,
        "steps": one.steps,
        "counts": dict(one.counts),
        "unmatched": dict(one.unmatched),
    }


def _mark(made: dict[str, Any]) -> str:
    return f"{made['name']}, pair {made['pair']} ({made['device']})"


def support_table(made: dict[str, Any]) -> Table:
    """What ran in which mode, and what was refused and why."""
    table = Table(title=f"{_mark(made)}: support by mode", title_justify="left")
    for column in ("mode", "scenario", "arm", "result"):
        table.add_column(column)
    table.add_column("tokens equal", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("why", overflow="fold")
    for row in made["rows"]:
        colour = _SHOWN.get(row["status"], "yellow")
        tokens = f"{row['tokens_equal']}/{row['tokens_total']}" if row["tokens_total"] else "-"
        table.add_row(
            *(row["mode"], row["scenario"], row["arm"], f"[{colour}]{row['status']}[/]"),
            *(tokens, str(row["steps"] or "-"), _plain(row["reason"])),
        )
    table.caption = "against the arm off; control: off once more, so a device that does not repeat itself is seen"
    return table


def profile_table(made: dict[str, Any]) -> Table:
    """Copies and waits over the recorded decode steps, by arm."""
    table = Table(title=f"{_mark(made)}: profile of batch-8 decode steps", title_justify="left")
    for column in ("mode", "arm"):
        table.add_column(column)
    for column in ("steps", "acl_memcpy_device_to_host", "wait_event", "host waits"):
        table.add_column(column, justify="right")
    table.add_column("counted by", overflow="fold")
    for one in made["profiles"]:
        counts = one["counts"]
        shown = [str(counts[name]) if counts else "-" for name in ("d2h", "wait_event", "host_wait")]
        why = one["reason"] or (f"not in a rule: {', '.join(one['unmatched'])}" if one["unmatched"] else "")
        told = "; ".join(part for part in (one["source"], why) if part)
        table.add_row(one["mode"], one["arm"], str(one["steps"]), *shown, _plain(told))
    table.caption = (
        "over all recorded steps, rank 0; wait_event: a stream waits for an event; host waits block the host"
    )
    return table


def stage_table(made: dict[str, Any]) -> Table:
    """Start of the engine by mode: model, KV cache, graphs, runner."""
    table = Table(title=f"{_mark(made)}: start of the engine, hooks off", title_justify="left")
    for column in ("mode", "start", "dtype", "KV blocks", "graphs", "runner", "ranks"):
        table.add_column(column)
    for mode, stages in made["stages"].items():
        if not stages:
            table.add_row(mode, "did not start", *["-"] * 5)
            continue
        blocks = f"{stages['kv_blocks']} of {stages['block_size']} tokens"
        graphs = f"{stages['graphs']} captured ({stages['graph_mode']})"
        workers = stages["workers"]
        table.add_row(
            *(mode, f"{stages['start_s']:.0f} s", stages["dtype"], blocks, graphs),
            *(workers[0]["runner"], str(len(workers))),
        )
    return table


def _plain(text: str) -> str:
    """Text of an engine's error may hold what rich reads as markup."""
    return text.replace("[", "\\[")


def write(plan: Plan, made: dict[str, Any], pair: dict[str, Any], npu_host: dict[str, Any]) -> None:
    """Write summary.json, environment.json and, last, the manifest over everything in the folder."""
    write_json(plan.out / "summary.json", made)
    asked = {
        "scenarios": [scenario.name for scenario in plan.scenarios],
        "modes": list(plan.modes),
        "graph_mode": plan.graph_mode,
        "arms": plan.arms,
        "profile_steps": plan.profile_steps,
        "tensor_parallel_size": plan.tensor_parallel_size,
        "model": plan.model.name,
        "model_config_sha256": _sha256(plan.model / "config.json"),
    }
    write_json(
        plan.out / "environment.json", {"device": DEVICES[plan.device], "pair": pair, **npu_host, "asked": asked}
    )
    write_manifest(plan.out)


def write_manifest(folder: Path) -> Path:
    """``sha256sum -c`` lines of every file under `folder`, in the order of their names."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in names if name != MANIFEST]
    path = folder / MANIFEST
    path.write_text("".join(lines))
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
