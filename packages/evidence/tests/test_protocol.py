"""Protocols: strict, hashed, and each mistake named with field, value and reason."""

from __future__ import annotations

import pytest
from make import PROTOCOL
from serving_evidence import protocol, schedule, templates
from serving_evidence.errors import ProtocolError


def test_hash_is_of_the_meaning_not_of_the_text() -> None:
    one = protocol.parse(PROTOCOL)
    assert one.hash == protocol.parse("# a comment\n" + PROTOCOL).hash
    assert one.hash != protocol.parse(PROTOCOL.replace("pairs = 6", "pairs = 7")).hash
    assert one.hash != protocol.parse(PROTOCOL.replace('label = "on"', 'label = "On"')).hash


def test_canonical_form_reads_back_as_the_same_protocol() -> None:
    one = protocol.parse(PROTOCOL)
    assert protocol.Protocol.model_validate_json(one.canonical()) == one


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("pairs = 6", 'pairs = "6"', "design.pairs"),
        ("pairs = 6", "pairs = 0", "design.pairs"),
        ("pairs = 6", "pears = 6", "design.pears"),
        ("version = 1", "version = 2", "version"),
        ("version = 1", "version = 1\nstarted = 2026-11-29", "cannot hold"),
        ("version = 1", "version = ", "not TOML"),
        ('scenario = "c8"\n[design]', 'scenario = "c9"\n[design]', "names scenario 'c9'"),
        ('active_log = "hook active"', 'active_log = "("', "regular expression"),
        ("[arms.B]", "[arms.C]", "arms"),
        ('"{base_url}"', '"{base_ulr}"', "base_ulr"),
        ('name = "c8"\ncommand', 'name = "../c8"\ncommand', "scenarios.0.name"),
        ('metric = "output_throughput"', 'metric = "output_throughput"\nmargin = 5', "primary.margin"),
        ('metric = "output_throughput"', 'metric = "output_throughput"\nrule = "same"', "margin above 0"),
        ("[design]", "[host]\nserver_cpus = [0, 1]\nclient_cpus = [1]\n[design]", "share CPUs"),
    ],
)
def test_mistakes_are_named(old: str, new: str, words: str) -> None:
    assert old in PROTOCOL
    with pytest.raises(ProtocolError, match=words):
        protocol.parse(PROTOCOL.replace(old, new))


def test_warnings_say_what_cannot_succeed() -> None:
    few = protocol.parse(PROTOCOL.replace("pairs = 6", "pairs = 5"))
    assert any("INCONCLUSIVE" in text for text in few.warnings())
    assert any("Holm" in text for text in few.warnings())
    assert any("pinned" in text for text in few.warnings())


def test_substitution_leaves_json_alone() -> None:
    done = protocol.substitute(("a", "{port}", '{"x": {"y": 1}}'), {"port": "80"})
    assert done == ["a", "80", '{"x": {"y": 1}}']


def test_schedule_is_balanced_and_fixed_by_the_seed() -> None:
    design = protocol.Design(pairs=7, seed=3)
    slots = schedule.plan(design)
    assert slots == schedule.plan(design)
    assert [slot.index for slot in slots] == list(range(14))
    for pair in range(7):
        assert sorted(slot.arm for slot in slots if slot.pair == pair) == ["A", "B"]
    arms = "".join(slot.arm for slot in slots)
    assert all(arms[i : i + 4] in ("ABBA", "BAAB") for i in range(0, 12, 4))
    assert {"".join(s.arm for s in schedule.plan(protocol.Design(pairs=2, seed=i))) for i in range(20)} == {
        "ABBA",
        "BAAB",
    }


@pytest.mark.parametrize("name", templates.names())
def test_every_template_is_a_protocol(name: str) -> None:
    declared = protocol.parse(templates.read(name))
    assert declared.design.pairs >= 6
    assert not any("INCONCLUSIVE" in text for text in declared.warnings())


def test_the_matrix_covers_batches_contexts_and_modes() -> None:
    for mode in ("graph", "eager"):
        declared = protocol.parse(templates.read(f"mrv2-against-mrv1-{mode}"))
        assert {s.name for s in declared.scenarios} == {f"b{b}-{c}" for b in (1, 8, 32) for c in ("short", "long")}
        assert ("--enforce-eager" in declared.arms["A"].command) == (mode == "eager")


def test_unknown_template_lists_the_known() -> None:
    with pytest.raises(ProtocolError, match="a-a, "):
        templates.read("nothing")
