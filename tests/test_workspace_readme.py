"""The two READMEs tell the same, and their figures are those of the recorded runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import docs_pages  # noqa: E402
import readme_commands  # noqa: E402
import readme_figures  # noqa: E402
import workspace  # noqa: E402

ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def report(**changes: object) -> dict[str, object]:
    row = {
        "scenario": "batch",
        "requests": 8,
        "preemptions": 0,
        "prefix_hits": 0,
        "tokens_equal": 255,
        "tokens_total": 256,
        "decode_steps": 31,
        "per_decode_step": {"d2h": 1.0, "event_waits": 0.5, "h2d_qsl": 1.0},
    }
    figures = {"seconds": 61.4, "ms_per_decode_step_8": 4.25, "serve_completed": 32, "serve_failed": 0}
    host = {"python": "3.11.7", "cores": 2, "cpu": "a CPU"}
    base = {"name": "cpu-smoke", "version": 1, "pair": "0.30.0", "host": host, "figures": figures, "rows": [row]}
    return base | {"serve": {"completed": 32}, "passed": True} | changes


def test_readmes_are_in_step() -> None:
    assert readme_commands.differences(ENGLISH, CHINESE) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (lambda text: text.replace("uvx nox -s tests", "uvx nox -s test"), "the blocks that CI runs differ"),
        (lambda text: text + "\n```bash\nuvx nox -s docs\n```\n", "the shell blocks differ"),
        (lambda text: text + "\n## One more\n", "the number of sections differs"),
        (
            lambda text: text.replace("<!-- end: cpu-smoke -->", "| batch | 8 |\n<!-- end: cpu-smoke -->"),
            "the figures of the generated tables differ",
        ),
    ],
)
def test_a_planted_difference_is_said(planted: object, said: str) -> None:
    assert said in readme_commands.differences(ENGLISH, planted(CHINESE))  # type: ignore[operator]


def test_the_commands_that_ci_runs() -> None:
    assert readme_commands.commands("tests", ENGLISH) == ["pip install uv && uvx nox -s tests"]
    assert readme_commands.commands("smoke", ENGLISH) == ["pip install uv && uvx nox -s cpu-smoke"]
    with pytest.raises(ValueError, match="nightly"):
        readme_commands.commands("nightly", ENGLISH)


def test_run_stops_at_the_first_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"<!-- ci: tests -->\n```bash\nexit 3\ntouch {tmp_path}/reached\n```\n")
    monkeypatch.setattr(readme_commands, "ENGLISH", readme)
    assert readme_commands.main(["run", "tests"]) == 3
    assert not (tmp_path / "reached").exists()


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(name: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_sessions_in_the_readme_exist() -> None:
    sessions = set(re.findall(r'^@nox\.session(?:\(.*name="([a-z-]+)".*\))?', NOXFILE, re.MULTILINE))
    sessions |= set(re.findall(r"^def ([a-z_]+)\(session", NOXFILE, re.MULTILINE))
    named = set(re.findall(r"nox -s ([a-z-]+)", ENGLISH + CHINESE))
    assert named
    assert named <= sessions


NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", readme_figures.FILES)
def test_figures_are_those_of_the_recorded_run(name: str) -> None:
    path = ROOT / name
    assert readme_figures.rewritten(path) == path.read_text(encoding="utf-8"), "run: python tools/readme_figures.py"


def test_table_of_packages_holds_them_all() -> None:
    table = readme_figures.package_table("en", links=True)
    for package in workspace.packages():
        assert f"[`{package.name}`](packages/{package.folder.name}/README.md)" in table


def test_a_figure_typed_by_hand_is_found(tmp_path: Path) -> None:
    page = "<!-- figures: cpu-smoke -->\n<!-- end: cpu-smoke -->\n"
    (tmp_path / "cpu-smoke.json").write_text(json.dumps(report()))
    filled = readme_figures.fill(page, "en", tmp_path)
    assert "| batch | 8 | 0 | 0 | 255/256 | 1 | 0.5 | 1 |" in filled
    assert "Pair 0.30.0, Python 3.11.7, 2 cores (a CPU); 61 s in all" in filled
    assert "32 requests completed, 0 failed" in filled
    assert readme_figures.fill(filled.replace("255/256", "256/256"), "en", tmp_path) == filled


def test_both_languages_hold_the_same_figures(tmp_path: Path) -> None:
    page = "<!-- figures: cpu-smoke -->\n<!-- end: cpu-smoke -->\n"
    (tmp_path / "cpu-smoke.json").write_text(json.dumps(report()))
    english, chinese = (
        readme_commands.table_figures(readme_figures.fill(page, lang, tmp_path)) for lang in ("en", "zh")
    )
    assert english == chinese
    assert english["cpu-smoke"][-1] == ["8", "0", "0", "255/256", "1", "0.5", "1"]


def test_several_pairs_are_several_tables() -> None:
    merged = report(pair="all", rows=[report(), report(pair="0.29.0")])
    text = readme_figures.render(merged, "en")
    assert text.count("| batch |") == 2
    assert "Pair 0.29.0" in text


@pytest.mark.parametrize(
    "changes", [{"passed": False}, {"version": 2}, {"rows": None, "figures": None, "version": None}]
)
def test_a_run_that_proves_nothing_is_not_recorded(tmp_path: Path, changes: dict[str, object]) -> None:
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(report(**changes)))
    with pytest.raises(ValueError, match="summary"):
        readme_figures.take(file, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_table_of_pairs_is_the_one_of_the_package() -> None:
    text = docs_pages.PAIRS_PAGE.read_text(encoding="utf-8")
    assert docs_pages.fill_pairs(text) == text, "run: python tools/docs_pages.py"
    assert docs_pages.fill_pairs(text.replace("0.30.0rc2", "0.30.0rc3")) == text
