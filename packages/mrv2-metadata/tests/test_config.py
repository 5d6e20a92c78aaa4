"""The strict key."""

import json

import pytest
from mrv2_metadata.config import Config, parse
from mrv2_metadata.errors import ConfigError


def test_the_defaults_are_off():
    assert parse({}) == Config(enabled=False, verify="off", strict=False, speculative_sync=frozenset(), stats_dir=None)


def test_a_mapping_and_its_json_are_one():
    value = {"enabled": True, "verify": "sample", "verify_period": 7, "strict": True, "speculative_sync": ["eagle"]}
    assert parse(value) == parse(json.dumps(value))
    assert parse(value) == Config(True, "sample", 7, True, frozenset({"eagle"}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", r"mrv2_metadata is not JSON .* got '\{'"),
        ("3", "mrv2_metadata must be an object .* got 3"),
        ([], r"mrv2_metadata must be an object .* got \[\]"),
        ({"enable": True}, "no key 'enable'; known keys: enabled, verify"),
        ({"enabled": 1}, "mrv2_metadata.enabled must be true or false, got 1"),
        ({"enabled": "true"}, "mrv2_metadata.enabled must be true or false, got 'true'"),
        ({"strict": None}, "mrv2_metadata.strict must be true or false, got None"),
        ({"verify": "always"}, "mrv2_metadata.verify must be one of off, sample, every, got 'always'"),
        ({"verify": ["off"]}, "mrv2_metadata.verify must be one of"),
        ({"verify": "sample", "verify_period": 0}, "verify_period must be a whole number of steps >= 1, got 0"),
        ({"verify": "sample", "verify_period": True}, "verify_period must be a whole number of steps >= 1, got True"),
        ({"verify_period": 3}, "verify_period is read with verify \"sample\" only, got verify 'off'"),
        ({"speculative_sync": "eagle"}, "speculative_sync must be a list of proposer names, got 'eagle'"),
        ({"speculative_sync": ["mtp"]}, "speculative_sync names 'mtp', for which there is no proof"),
        ({"stats_dir": 3}, "stats_dir must be the path of a folder or null, got 3"),
        ({"stats_dir": ""}, "stats_dir must be the path of a folder or null, got ''"),
    ],
)
def test_bad_input_names_the_field_the_value_and_the_fix(value, message):
    with pytest.raises(ConfigError, match=message):
        parse(value)
