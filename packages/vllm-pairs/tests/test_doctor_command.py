"""The command around the rules: exit status, formats, suppressions, since, explain and the cache."""

import json

import pytest
from typer.testing import CliRunner
from vllm_pairs import cli
from vllm_pairs.doctor import engine
from vllm_pairs.doctor.rules import RULES

CORE = {"vllm/config.py": "class VllmConfig:\n    def load(self, path):\n        ...\n"}
PLUGIN = {
    "vllm_ascend/__init__.py": "from vllm.config import Gone\n",
    "vllm_ascend/rare.py": "from vllm.config import VllmConfig\n\n\ndef rare():\n    VllmConfig().load()\n",
}


@pytest.fixture
def doctor(trees, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "240")
    core, plugin = trees.core(CORE), trees.plugin(PLUGIN)
    hooks = tmp_path / "no_hooks"
    hooks.mkdir()

    def run(*arguments, core=core, plugin=plugin):
        given = ["doctor", "--core", str(core), "--plugin", str(plugin), "--hooks", str(hooks), *map(str, arguments)]
        return CliRunner().invoke(cli.app, given)

    return run


def report(result):
    return json.loads(result.stdout)


def test_errors_end_with_status_one_and_a_fitting_pair_with_zero(doctor, trees):
    result = doctor()
    assert result.exit_code == 1
    assert "vllm_ascend/__init__.py:1" in result.stdout
    assert "1 errors, 1 warnings, 0 notes" in result.stdout
    trees.core({"vllm/config.py": CORE["vllm/config.py"].replace(", path", "") + "\n\nclass Gone:\n    ...\n"})
    assert doctor().exit_code == 0


def test_json_has_both_sides_and_stable_ids(doctor, trees):
    first = report(doctor("--json"))
    assert {finding["rule"] for finding in first["findings"]} == {"VPD102", "VPD201"}
    assert first["counts"] == {"error": 1, "warning": 1, "note": 0}
    assert first["core"]["version"] == "0.30.0"
    trees.plugin({"vllm_ascend/__init__.py": "# moved down\n\n" + PLUGIN["vllm_ascend/__init__.py"]})
    second = report(doctor("--json"))
    assert [finding["id"] for finding in first["findings"]] == [finding["id"] for finding in second["findings"]]
    assert [finding["line"] for finding in second["findings"]] == [3, 5]


def test_sarif_names_rules_places_and_the_cores_side(doctor):
    run = report(doctor("--format", "sarif"))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [rule.id for rule in RULES]
    result = run["results"][0]
    place = result["locations"][0]["physicalLocation"]
    assert (result["level"], place["artifactLocation"]["uri"]) == ("error", "vllm_ascend/__init__.py")
    assert result["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "vllm/config.py"


def suppression(tmp_path, **fields):
    path = tmp_path / "suppress.toml"
    lines = "\n".join(f'{name} = "{value}"' for name, value in fields.items())
    path.write_text(f"[[suppress]]\n{lines}\n", encoding="utf-8")
    return path


def test_a_suppression_hides_one_finding_until_its_release(doctor, tmp_path):
    error = report(doctor("--json"))["findings"][0]["id"]
    result = doctor("--json", "--suppressions", suppression(tmp_path, id=error, reason="known", expires="0.31.0"))
    assert result.exit_code == 0
    assert [one["id"] for one in report(result)["suppressed"]] == [error]
    ended = doctor("--suppressions", suppression(tmp_path, id=error, reason="known", expires="0.30.0"))
    assert ended.exit_code == 1
    assert f"suppression {error} ended with core 0.30.0 (known)" in ended.stderr
    idle = doctor("--suppressions", suppression(tmp_path, id="VPD101-00000000", reason="old", expires="9"))
    assert "hides nothing" in idle.stderr


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "VPD101", "reason": "a whole rule", "expires": "0.31.0"},
        {"id": "VPD101-00000000", "reason": " ", "expires": "0.31.0"},
        {"id": "VPD101-00000000", "reason": "no end"},
        {"id": "VPD101-00000000", "reason": "no end", "expires": "never"},
        {"id": "VPD101-00000000", "reason": "a pattern", "expires": "0.31.0", "file": "*"},
    ],
)
def test_a_suppression_that_is_wide_or_endless_is_refused(doctor, tmp_path, fields):
    result = doctor("--suppressions", suppression(tmp_path, **fields))
    assert result.exit_code == 2
    assert "suppress[0]" in result.stderr


def test_since_names_the_first_core_that_breaks(doctor, trees):
    old = CORE["vllm/config.py"] + "\n\nclass Gone:\n    ...\n"
    first = trees.core({"vllm/config.py": old}, "0.27.0", side="first")
    second = trees.core({"vllm/config.py": old.replace(", path", "")}, "0.28.0", side="second")
    third = trees.core(CORE, "0.29.0", side="third")
    result = doctor("--json", "--since", third, "--since", first, "--since", second)
    since = {finding["rule"]: finding["since"] for finding in report(result)["findings"]}
    assert since == {"VPD102": "0.29.0", "VPD201": "0.29.0"}
    result = doctor("--json", "--since", first)
    since = {finding["rule"]: finding["since"] for finding in report(result)["findings"]}
    assert since == {"VPD102": "0.30.0", "VPD201": "0.27.0"}


def test_explain_a_rule_and_a_finding(doctor):
    for rule in RULES:
        result = doctor("--explain", rule.id)
        assert result.exit_code == 0
        assert rule.title in result.stdout
        assert rule.fix in result.stdout
    found = report(doctor("--json"))["findings"][1]
    text = doctor("--explain", found["id"]).stdout
    assert "vllm_ascend/rare.py:5" in text
    assert "vllm/config.py:2" in text
    assert doctor("--explain", "VPD999").exit_code == 2
    assert doctor("--explain", "VPD101-00000000").exit_code == 2


def test_a_second_run_is_answered_without_reading_syntax(doctor, trees, monkeypatch):
    first = report(doctor("--json"))
    ran = []
    rules = engine.Workbench.run
    monkeypatch.setattr(engine.Workbench, "run", lambda *given: ran.append(1) or rules(*given))
    second = report(doctor("--json"))
    assert (ran, second["cached"], second["findings"]) == ([], True, first["findings"])
    assert report(doctor("--json", "--no-cache"))["cached"] is False
    trees.plugin({"vllm_ascend/rare.py": "x = 1\n"})
    changed = report(doctor("--json"))
    assert (len(ran), changed["cached"], len(changed["findings"])) == (2, False, 1)


def test_a_damaged_or_unwritable_cache_is_done_without(doctor, tmp_path):
    first = report(doctor("--json"))
    (kept,) = (tmp_path / "cache").rglob("*.json")
    for damage in ("", "{}", '{"version": 1', "[]"):
        kept.write_text(damage, encoding="utf-8")
        again = report(doctor("--json"))
        assert (again["cached"], again["findings"]) == (False, first["findings"])
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("a file where the folder was", encoding="utf-8")
    assert report(doctor("--json"))["findings"] == first["findings"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--confidence", "most"), "--confidence"),
        (("--format", "xml"), "--format"),
        (("--core", "/nowhere"), "source tree"),
    ],
)
def test_bad_input_ends_with_status_two(doctor, arguments, word):
    result = doctor(*arguments)
    assert result.exit_code == 2
    assert word in result.stderr


def test_confidence_low_shows_the_notes(doctor, trees):
    trees.plugin({"vllm_ascend/more.py": "import vllm.config\nvllm.config.gone = len\n"})
    assert len(report(doctor("--json"))["findings"]) == 2
    assert len(report(doctor("--json", "--confidence", "low"))["findings"]) == 3
