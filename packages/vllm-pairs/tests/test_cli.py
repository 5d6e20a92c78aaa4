import json
import re

import pytest
from typer.testing import CliRunner
from vllm_pairs import cli
from vllm_pairs.contract import ast_sha256
from vllm_pairs.pairs import load_pairs

run = CliRunner().invoke


def test_list_names_every_pair_and_what_was_tested(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = run(cli.app, ["list"])
    assert result.exit_code == 0
    for pair in load_pairs().pairs:
        assert pair.id in result.output
        assert pair.status in result.output
    assert "vllm-pairs" in result.output


def test_list_as_json_holds_the_whole_table():
    value = json.loads(run(cli.app, ["list", "--json"]).output)
    assert value["default"] == load_pairs().default
    assert [pair["id"] for pair in value["pairs"]] == [pair.id for pair in load_pairs().pairs]
    assert {pair["id"] for pair in value["pairs"] if pair["verified"]} == {
        p.id for p in load_pairs().pairs if p.verified
    }


@pytest.mark.parametrize(
    ("pair_id", "status", "word"), [("0.30.0", 0, "verified"), ("0.23.0", 1, "lora_capture_cases")]
)
def test_check_says_why(monkeypatch, pair_id, status, word):
    monkeypatch.setattr(cli, "current_pair", lambda: load_pairs().get(pair_id))
    result = run(cli.app, ["check"])
    assert result.exit_code == status
    assert word in result.output
    assert json.loads(run(cli.app, ["check", "--json"]).output)["id"] == pair_id


def test_hash_prints_the_contract():
    result = run(cli.app, ["hash", "json:dumps", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert found["ast_sha256"] == ast_sha256(json.dumps)
    assert found["signature"].startswith("(obj, *, skipkeys=False")
    assert re.search(r"ast_sha256: [0-9a-f]{64}", run(cli.app, ["hash", "json:dumps"]).output)


@pytest.mark.parametrize("target", ["nope", "json:nope", "no_such_module_here:f", "json:JSONDecodeError", "math:cos"])
def test_hash_of_something_else_is_one_line_and_status_two(target, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.app(["hash", target])
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert out == ""
    assert err.startswith("vllm-pairs: ")
    assert err.count("\n") == 1
