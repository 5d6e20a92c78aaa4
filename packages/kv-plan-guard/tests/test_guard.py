"""The guard as its users meet it: latch, log mode, sampling, configuration, counters, coverage, reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kv_make import CONFIG, CONNECTED, codes, full, guard, new, plan, step
from kv_plan_guard import (
    CachedRequests,
    Code,
    Config,
    ConfigError,
    FactsError,
    GroupLayout,
    Guard,
    Layout,
    LayoutError,
    PlanError,
    PlanFacts,
    snapshot,
)
from kv_plan_guard import config as config_module
from kv_plan_guard import layout as layout_module
from kv_plan_guard.cli import main
from kv_plan_guard.explain import explain

G = full(16)


def bad(g: Guard, number: int = 1) -> PlanFacts:
    if number == 1:
        g.observe(step(1, {"A": 20}, [new("A", [1, 2])]))
        right = plan(1, [("A", [1, 2], 0, 20)], G)
    else:
        g.observe(step(number, {"A": 1}, cached=[("A", 18 + number, None)]))
        right = plan(number, [("A", [1, 2], 18 + number, 1)], G)
    assert right.slot_mapping is not None
    return replace(right, slot_mapping=right.slot_mapping + 1)


def test_raise_latches(caplog: pytest.LogCaptureFixture) -> None:
    g = guard(G, config=replace(CONFIG, action="raise"))
    g.gate()
    assert "SLOT" in codes(g.audit(bad(g)))
    for _ in range(3):  # sticky: later good steps do not free it
        with pytest.raises(PlanError, match="SLOT") as raised:
            g.gate()
    assert raised.value.violations
    g.observe(step(2, {"A": 1}, cached=[("A", 20, None)]))
    assert g.audit(plan(2, [("A", [1, 2], 20, 1)], G)).ok
    with pytest.raises(PlanError):
        g.gate()
    assert g.stats.withheld == 4
    assert len(caplog.records) == 1


def test_log_reports_once_per_signature_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    g = guard(G)
    for number in range(1, 8):
        assert not g.audit(bad(g, number)).ok
        g.gate()
    assert len(caplog.records) <= 2  # a whole prompt and single tokens differ in what else is wrong
    assert g.stats.bad_audits == 7
    assert sum(g.signatures().values()) >= 7


def test_a_signature_has_no_names_in_it() -> None:
    """Foreign blocks of request after request are one kind of finding, not one each."""
    g = guard(G)
    for number in range(1, 30):
        name, other = f"cmpl-{number:08x}", f"other-{number:08x}"
        block = 2 * number
        facts = step(number, {name: 4, other: 4}, [new(name, [block]), new(other, [block + 1])])
        g.observe(replace(facts, finished=frozenset({f"cmpl-{number - 1:08x}", f"other-{number - 1:08x}"})))
        wrong = plan(number, [(name, [block + 1], 0, 4), (other, [block + 1], 0, 4)], G)
        assert "XWRITE" in codes(g.audit(wrong))
    assert len(g.signatures()) <= 5


def test_facts_that_json_has_not_cost_the_file_and_not_the_finding(tmp_path: Path) -> None:
    g = guard(G, config=Config(enabled=True, action="log", replay_dir=str(tmp_path)))
    g.observe(replace(step(1, {"A": 8}, [new("A", [1])]), spec_tokens={"A": [object()]}))  # type: ignore[dict-item]
    wrong = replace(plan(1, [("A", [1], 0, 8)], G), slot_mapping=np.arange(8))
    assert not g.audit(wrong).ok
    assert not list(tmp_path.iterdir())


def test_a_callers_list_may_be_used_again() -> None:
    g = guard(G)
    names, blocks, computed = ["A", "B"], [None, None], [4, 4]
    g.observe(step(1, {"A": 4, "B": 4}, [new("A", [1]), new("B", [2])]))
    facts = step(2, {"A": 1, "B": 1})
    g.observe(replace(facts, cached=CachedRequests(names, blocks, computed)))
    names.reverse()
    g.observe(replace(facts, step=3, cached=CachedRequests(names, blocks, [5, 5])))
    assert g.audit(plan(3, [("B", [2], 5, 1), ("A", [1], 5, 1)], G)).ok
    assert g.audit(plan(3, [("A", [1], 5, 1), ("B", [2], 5, 1)], G)).ok


def test_sampling_follows_every_step_and_audits_some() -> None:
    g = guard(G, config=replace(CONFIG, every=4))
    assert [number for number in range(1, 10) if g.wants(number)] == [4, 8]
    g.audit(bad(g))
    assert "every 4th step" in g.finish()


def test_each_check_can_be_switched_off_alone_and_then_misses() -> None:
    for code in ("SLOT", "ROW", "LEN", "POS", "QSL"):
        g = guard(G, without=[Code(code)])
        g.observe(step(1, {"A": 20}, [new("A", [1, 2])]))
        right = plan(1, [("A", [1, 2], 0, 20)], G)
        wrong: dict[str, Any] = {
            "SLOT": {"slot_mapping": np.arange(20) + 17},
            "ROW": {"block_table": np.array([[1, 9]], np.int32)},
            "LEN": {"seq_lens": np.array([21], np.int32)},
            "POS": {"positions": np.arange(20) + 1},
            "QSL": {"query_start_loc": np.array([0, 19], np.int32)},
        }[code]
        assert code not in codes(g.audit(replace(right, **wrong)))
        g = guard(G)
        g.observe(step(1, {"A": 20}, [new("A", [1, 2])]))
        assert code in codes(g.audit(replace(right, **wrong)))


def test_calls_out_of_order_are_the_adapters_fault() -> None:
    g = guard(G)
    with pytest.raises(FactsError):
        g.audit(plan(1, [("A", [1], 0, 1)], G))
    g.observe(step(3, {"A": 8}, [new("A", [1])]))
    with pytest.raises(FactsError, match="must grow"):
        g.observe(step(3, {}))
    with pytest.raises(FactsError, match="not the step"):
        g.audit(plan(2, [("A", [1], 0, 8)], G))
    with pytest.raises(FactsError, match="below 1"):
        g.audit(plan(3, [("A", [1], 0, 8)], G, index=5))
    with pytest.raises(FactsError, match="groups"):
        g.observe(step(4, {"B": 8}, [new("B", [[1], [2]])]))


def test_an_empty_rank_and_empty_steps_are_silent() -> None:
    for ncomp, known in ((7, 8), (0, 1)):  # a decode on the other rank, and a prompt of one token
        g = guard(G, pcp_size=2, pcp_rank=1)
        g.observe(step(1, {"A": 1}, [new("A", [1], ncomp, known)]))
        empty = plan(1, [("A", [1], 0, 0)], G, local=True, num_tokens=1)
        assert g.audit(empty).ok
    assert g.observe(step(2, {})).ok
    assert g.audit(PlanFacts(2, 0, [], np.zeros(1, np.int32))).ok


def test_fewer_tokens_than_logits_is_a_lawful_batch() -> None:
    """A pipeline with drafts: a request whose drafts were cut has fewer tokens than the sampler takes logits."""
    g = guard(G, num_speculative_tokens=3)
    g.observe(step(1, {"A": 16}, [new("A", [1, 2], 0, 16)]))
    assert g.observe(step(2, {"A": 1}, cached=[("A", 16, None)], spec_tokens={"A": [7, 8, 9]})).ok
    assert g.audit(plan(2, [("A", [1, 2], 16, 1)], G)).ok


def _hit_of_the_same_step(blocks: int, hits: list[int], served_first: str) -> Any:
    """A gets `blocks` blocks in a step in which B starts with `hits` as its computed prefix."""
    g = guard(G)
    ids = list(range(10, 11 + blocks))
    g.observe(step(1, {"A": 16}, [new("A", ids[:1], 0, 16 * len(ids))]))
    fills, start = {"A": 16 * blocks, "B": 4}, 16 * len(hits)
    hit = new("B", [*hits, 900], start, start + 4)
    if served_first == "running":
        g.observe(step(2, fills, [hit], [("A", 16, ids[1:])]))
    elif served_first == "resumed":
        g.observe(step(2, {}, preempted=["A"]))
        g.observe(step(3, fills | {"A": 16 * len(ids)}, [hit], [("A", 0, ids)], resumed=["A"]))
        return g.audit(plan(3, [("A", ids, 0, 16 * len(ids)), ("B", [*hits, 900], start, 4)], G))
    return g.audit(plan(2, [("A", ids, 16, 16 * blocks), ("B", [*hits, 900], start, 4)], G))


@pytest.mark.parametrize("served_first", ["running", "resumed"])
@pytest.mark.parametrize("blocks", [2, 12])  # one by one, and at once
def test_a_new_request_may_hit_what_is_filled_in_the_same_step(blocks: int, served_first: str) -> None:
    """Its hit is listed before the giving, and is one all the same: found by a million steps of the real scheduler."""
    assert _hit_of_the_same_step(blocks, list(range(10, 10 + blocks)), served_first).ok


@pytest.mark.parametrize("blocks", [2, 12])
def test_a_block_given_twice_in_a_step_is_no_hit(blocks: int) -> None:
    """At another column it can be no prefix of the same tokens: then one request overwrites the other."""
    shifted = list(range(11, 11 + blocks))
    assert "XWRITE" in codes(_hit_of_the_same_step(blocks, shifted, "running"))


@pytest.mark.parametrize("blocks", [2, 12])
def test_a_hit_of_an_earlier_step_makes_no_later_giving_lawful(blocks: int) -> None:
    g = guard(G)
    ids = list(range(10, 10 + blocks))
    g.observe(step(1, {"B": 4}, [new("B", [*ids, 900], 16 * blocks, 16 * blocks + 4)]))
    g.observe(step(2, {"B": 1, "A": 16 * blocks}, [new("A", ids, 0, 16 * blocks)], [("B", 16 * blocks + 4, None)]))
    rows = [("B", [*ids, 900], 16 * blocks + 4, 1), ("A", ids, 0, 16 * blocks)]
    assert codes(g.audit(plan(2, rows, G))) == {"XWRITE"}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"enable": True}, "enable"),
        ({"enabled": 1}, "enabled"),
        ({"enabled": True, "action": "stop"}, "action"),
        ({"sample": 4}, "sample"),
        ({"sample": {"every": 0}}, "every"),
        ({"sample": {"each": 2}}, "sample"),
        ({"report": "xml"}, "report"),
        ({"replay_dir": 3}, "replay_dir"),
        ({"replay_bytes": 1}, "replay_bytes"),
        ({"tail": "yes"}, "tail"),
        ("{", "JSON"),
        ("[]", "object"),
    ],
)
def test_config_names_what_it_refuses(value: Any, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        config_module.parse(value)


def test_config_round_trip() -> None:
    text = '{"enabled": true, "action": "log", "sample": {"every": 8}, "replay_files": 0, "tail": true}'
    config = config_module.parse(text)
    assert (config.action, config.every, config.tail) == ("log", 8, True)
    assert config_module.parse(config_module.to_json(config)) == config


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "half", "block_size": 16, "pool_blocks": 10},
        {"kind": "full", "block_size": 0, "pool_blocks": 10},
        {"kind": "full", "block_size": 16, "pool_blocks": 10, "kernel_block_size": 5},
        {"kind": "sliding", "block_size": 16, "pool_blocks": 10},
        {"kind": "full", "block_size": 16, "pool_blocks": 10, "window": 8},
        {"kind": "full", "block_size": 16, "pool_blocks": 10, "shards": 2, "shard_rank": 2},
        {"kind": "mamba", "block_size": 16, "pool_blocks": 10, "shards": 2},
        {"kind": "full", "block_size": 16, "pool_blocks": 10, "null_block": 10},
    ],
)
def test_layouts_that_contradict_themselves_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match="must be"):
        GroupLayout(**fields)


def test_layout_round_trip() -> None:
    layout = Layout((G, GroupLayout("sliding", 8, 50, window=20)), notes=("x",), **CONNECTED)
    assert layout_module.from_json(json.loads(json.dumps(layout_module.to_json(layout)))) == layout
    with pytest.raises(LayoutError):
        layout_module.from_json({"groups": [{"kind": "full", "block_size": 16, "pool": 10}]})


def test_inactive_checks_are_listed_with_their_reason() -> None:
    g = guard(G, connector="SomeConnector")
    lines = {line.code: line for line in g.coverage()}
    assert not lines[Code.CONN].active
    assert "SomeConnector is not read" in lines[Code.LIFETIME].why
    assert not lines[Code.SLOT].active
    g.audit(bad(g))
    assert {line.code: line for line in g.coverage()}[Code.SLOT].ran == 1


def test_the_report_says_everything_in_the_same_order() -> None:
    g = guard(G, pair="0.30.0", rank="tp0")
    facts = bad(g)
    audit = g.audit(facts)
    text = g.report(audit.violations, facts)
    first = text.splitlines()[0]
    assert first.startswith(
        "==kv-plan-guard== ERROR: SLOT in slot_mapping of request 'A', group 0, step 1, row 0, token 0"
    )
    assert "belongs   16 17 18 19 20" in text
    for part in ("position", "^", "given to 'A'", "scheduled tokens", "active checks", "pair 0.30.0", "config {"):
        assert part in text, part
    data = json.loads(guard(G, config=replace(CONFIG, report="json")).report(audit.violations, facts))
    assert data["violations"][0]["code"] == "SLOT"
    assert data["inactive"]


def test_counters_reach_a_folder_and_prometheus_across_processes(tmp_path: Path) -> None:
    """A worker process writes; another process, as the server's /metrics does, gathers."""
    worker = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from kv_make import *\n"
        "from dataclasses import replace\n"
        "from test_guard import bad, G\n"
        "g = guard(G, config=replace(CONFIG, stats_dir=sys.argv[2]))\n"
        "g.audit(bad(g)); g.finish()\n"
    )
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "multi")}
    (tmp_path / "multi").mkdir()
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", worker, here, str(tmp_path / "stats")], env=env, check=True)
    (text,) = (tmp_path / "stats").glob("*.prom")
    assert 'code="SLOT"' in text.read_text()
    (plain,) = (tmp_path / "stats").glob("*.json")
    assert json.loads(plain.read_text())["violations"]["SLOT"] == 20
    server = (
        "from prometheus_client import CollectorRegistry, generate_latest, multiprocess\n"
        "registry = CollectorRegistry(); multiprocess.MultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", server], env=env, check=True, capture_output=True, text=True)
    assert 'kv_plan_guard_violations_total{code="SLOT"} 20.0' in done.stdout
    assert "kv_plan_guard_audits_total 1.0" in done.stdout


def test_explain_knows_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    for code in Code:
        assert explain(code).meaning
        assert main(["explain", code.value.lower()]) == 0
    assert main(["explain", "NOPE"]) == 2
    assert "known: ROW" in capsys.readouterr().err
    assert main(["bench", "--samples", "0"]) == 2


def test_bench_measures_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--samples", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} >= {"c1_prefill_2048", "b256_32k"}
    assert all(row["slow_audits"] == 0 for row in rows)


def test_snapshot_places_and_views() -> None:
    arrays = [("a", np.arange(7, dtype=np.int32)), ("b", np.arange(12).reshape(3, 4))]
    buffer = np.zeros(4096, np.uint8)
    made = snapshot.pack(arrays, buffer)
    for name, array in arrays:
        assert np.array_equal(made[name], array)
    where = snapshot.places(tuple(snapshot.Part(name, array.shape, array.dtype.name) for name, array in arrays))
    assert all(offset % snapshot.ALIGN == 0 for offset in where.offsets)
    assert np.array_equal(snapshot.views(buffer, where)["b"], arrays[1][1])
    with pytest.raises(ValueError, match="bytes"):
        snapshot.pack(arrays, buffer[:64])


def test_memory_is_linear_in_live_blocks_and_does_not_grow_with_steps() -> None:
    g = guard(full(16, pool=4096))
    sizes = []
    for number in range(1, 400):
        names = [f"r{number}-{at}" for at in range(4)]
        finished = {f"r{number - 1}-{at}" for at in range(4)}
        news = [new(name, list(range(1 + at * 30, 1 + at * 30 + 30))) for at, name in enumerate(names)]
        g.observe(step(number, dict.fromkeys(names, 480), news, finished=finished))
        sizes.append(g.nbytes())
    assert sizes[-1] == sizes[20]
    assert not any(group.conflicts for group in g.mirror.groups)
