"""The key is strict; policies of others are found by entry point."""

from __future__ import annotations

from importlib import metadata

import pytest
from layerwise_sched import Config, ConfigError, PolicyError, make_policy, policy_names
from layerwise_sched.config import parse


def test_defaults_put_nothing_in() -> None:
    assert parse({}) == Config()
    assert not Config().active
    assert parse('{"policy": "ready"}').active
    assert parse({"timeline": "t"}).active
    assert parse({"control": "c"}).active


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"timelines": "x"}, "has no key 'timelines'; known keys: timeline, policy"),
        ({"policy": "lifo"}, "policy must be one of fifo, ready, gate"),
        ({"policy": 3}, "policy must be one of"),
        ({"timeline": ""}, "timeline must be a path or null, got ''"),
        ({"max_hold_ms": 0}, "max_hold_ms must be a whole number of milliseconds from 1 to 10000, got 0"),
        ({"max_hold_ms": True}, "max_hold_ms must be a whole number"),
        ({"poll_us": 1.5}, "poll_us must be a whole number of microseconds"),
        ({"lookahead": 0}, "lookahead must be a whole number of tasks"),
        ({"ring_rows": 10}, "ring_rows must be a whole number of rows"),
        ({"sample_us": 10}, "sample_us must be 0 or 50 to 1000000"),
        ({"strict": 1}, "strict must be true or false, got 1"),
        ("{", "is not JSON"),
        ([], "must be an object"),
    ],
)
def test_every_wrong_value_is_named(value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(value)


class Third:
    name, reorders = "third", True

    def __init__(self, lookahead: int = 0) -> None:
        self.lookahead = lookahead

    def select(self, queue: object, ready: object) -> int:
        return 0


class NotAPolicy:
    def __init__(self, **_options: object) -> None:
        pass


def test_third_parties_register_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "layerwise_sched.policies"
    points = [
        metadata.EntryPoint("third", f"{__name__}:Third", group),
        metadata.EntryPoint("absent", "no_such_module:P", group),
        metadata.EntryPoint("odd", f"{__name__}:NotAPolicy", group),
        metadata.EntryPoint("fifo", f"{__name__}:NotAPolicy", group),  # a built-in name cannot be taken
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(metadata.EntryPoint, "load", _load)
    assert policy_names() == ("fifo", "ready", "gate", "absent", "odd", "third")
    assert make_policy("third", lookahead=5).lookahead == 5  # type: ignore[attr-defined]
    assert make_policy("fifo").reorders is False
    assert parse({"policy": "third"}).policy == "third"
    with pytest.raises(PolicyError, match="'absent'"):
        make_policy("absent")
    with pytest.raises(PolicyError, match="has no name, reorders or select"):
        make_policy("odd")
    with pytest.raises(PolicyError, match="there is no policy 'lifo'; known: fifo"):
        make_policy("lifo")


def _load(point: metadata.EntryPoint) -> object:
    if point.name == "absent":
        raise ModuleNotFoundError("no_such_module")
    return {"third": Third}.get(point.name, NotAPolicy)
