"""Trees that are no good: a clear finding or one error that says what to give, never a traceback."""

import os
import zipfile

import pytest
from vllm_pairs.doctor import DoctorError, Workbench, workers
from vllm_pairs.doctor.sources import MAX_FILE_LINES

CORE = {"vllm/config.py": "class VllmConfig:\n    ...\n"}
PLUGIN = {"vllm_ascend/platform.py": "from vllm.config import VllmConfig\n"}


def examine(core, plugin):
    bench = Workbench(processes=1)
    return bench.run(bench.core(core), bench.plugin(plugin))


@pytest.mark.parametrize(
    ("content", "line", "word"),
    [
        (b"def broken(:\n", 1, "parsed"),
        (b"x = 1\nclass\n", 2, "parsed"),
        (b"x = 1\0\n", 1, "null"),
        (b"# -*- coding: nothing -*-\n", 1, "encoding"),
        ("é = '\xff'".encode("latin-1"), 1, "parsed"),
        (b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", 1, "parsed"),
        (b"x = 1\n" * (MAX_FILE_LINES + 1), 1, "lines"),
        (b"x = '" + b"a" * (5 << 20) + b"'\n", 1, "larger"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_finding_and_its_names_count_as_there(trees, content, line, word):
    core, plugin = trees.core(CORE), trees.plugin({**PLUGIN, "vllm_ascend/x.py": "from vllm.bad import anything\n"})
    (core / "vllm" / "bad.py").write_bytes(content)
    (found,) = examine(core, plugin).findings
    assert (found.kind, found.file, found.line) == ("unreadable", "vllm/bad.py", line)
    assert word in found.message


def test_links_are_not_followed(trees, tmp_path):
    core, plugin = trees.core(CORE), trees.plugin(PLUGIN)
    secret = tmp_path / "secret.py"
    secret.write_text("def broken(:\n", encoding="utf-8")
    os.symlink(secret, core / "vllm" / "linked.py")
    os.symlink(tmp_path, core / "vllm" / "around")
    os.symlink(core / "nowhere.py", core / "vllm" / "dangling.py")
    os.symlink(core / "vllm", core / "vllm" / "itself")
    os.symlink("self.py", core / "vllm" / "self.py")
    found = examine(core, plugin).findings
    names = ("linked.py", "around", "dangling.py", "itself", "self.py")
    assert {one.file for one in found} == {f"vllm/{name}" for name in names}
    assert all("link" in one.message for one in found)


def test_what_is_no_plain_file_is_not_waited_for(trees):
    core, plugin = trees.core(CORE), trees.plugin(PLUGIN)
    os.mkfifo(core / "vllm" / "pipe.py")
    (found,) = examine(core, plugin).findings
    assert (found.kind, found.file) == ("unreadable", "vllm/pipe.py")


def test_a_folder_that_cannot_be_read_is_said(trees, monkeypatch):
    core, plugin = trees.core({**CORE, "vllm/closed/deep.py": ""}), trees.plugin(PLUGIN)
    scan = os.scandir

    def refuse(folder):  # who runs as root may read every folder
        if str(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    (found,) = examine(core, plugin).findings
    assert (found.kind, found.file) == ("unreadable", "vllm/closed")
    assert "Permission denied" in found.message


@pytest.mark.parametrize("side", ["core", "plugin"])
@pytest.mark.parametrize("depth", [60, 200, 300, 450, 900])
def test_code_that_is_nested_too_deeply_is_said_or_read(trees, side, depth):
    chain = "if x == 0:\n    y = 0\n" + "".join(f"elif x == {n}:\n    y = f({n})\n" for n in range(1, depth))
    source = f"def f(x):\n    return x\n\n\nx = y = {' + '.join('1' * depth)}\n{chain}\nf(1, k=2)\n"
    core, plugin = trees.core(CORE), trees.plugin(PLUGIN)
    folder = core / "vllm" if side == "core" else plugin / "vllm_ascend"
    (folder / "deep.py").write_text(source, encoding="utf-8")
    (plugin / "vllm_ascend" / "uses.py").write_text("import vllm.deep\nvllm.deep.f = len\n", encoding="utf-8")
    unreadable = [one.file for one in examine(core, plugin).findings if one.kind == "unreadable"]
    assert unreadable in ([], [f"{folder.name}/deep.py"])
    assert depth > 60 or not unreadable
    assert depth < 900 or side == "core" or unreadable  # of the core a part is looked into only where it is asked for


def test_a_name_that_is_not_utf_8_can_be_read_and_printed(trees):
    core, plugin = trees.core(CORE), trees.plugin(PLUGIN)
    with open(os.path.join(os.fsencode(core), b"vllm", b"\xff.py"), "wb") as file:
        file.write(b"def broken(:\n")
    (found,) = examine(core, plugin).findings
    assert found.file == "vllm/\\xff.py"
    assert found.message.encode("utf-8")


def test_empty_trees_and_empty_files(trees, tmp_path):
    core, plugin = trees.core({"vllm/empty.py": ""}), trees.plugin({"vllm_ascend/empty.py": ""})
    assert examine(core, plugin).findings == ()
    (tmp_path / "bare" / "vllm").mkdir(parents=True)
    with pytest.raises(DoctorError, match="no package 'vllm'"):
        Workbench().core(tmp_path / "bare")


def test_no_version_is_a_finding(trees):
    found = trees.only(examine(trees.core(CORE, version=None), trees.plugin(PLUGIN)).findings, "unreadable")
    assert "no version" in found.message


def test_a_version_can_be_given(trees):
    bench = Workbench(processes=1)
    core = bench.core(trees.core(CORE, version=None), "0.30.0")
    assert bench.run(core, bench.plugin(trees.plugin(PLUGIN))).findings == ()


def test_the_package_itself_a_src_folder_and_a_wheel_are_trees_too(trees, tmp_path):
    core, plugin = trees.core(CORE), trees.plugin(PLUGIN)
    wheel = tmp_path / "vllm.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in core.rglob("*"):
            archive.write(file, file.relative_to(core))
    source = tmp_path / "checkout" / "src"
    source.mkdir(parents=True)
    (core / "vllm").rename(source / "vllm")
    (core / "PKG-INFO").write_text("Name: vllm\nVersion: 0.30.0\n", encoding="utf-8")
    (core / "PKG-INFO").rename(source.parent / "PKG-INFO")
    for where in (wheel, source.parent, source / "vllm"):
        report = examine(where, plugin)
        assert [one for one in report.findings if one.kind != "unreadable"] == []
        assert report.core.version == ("0.30.0" if where != source / "vllm" else None)


def test_a_version_that_is_none_is_refused(trees):
    with pytest.raises(DoctorError, match="got 'newest'"):
        Workbench().core(trees.core(CORE), "newest")


@pytest.mark.parametrize("where", ["/nowhere/at/all", "no-such-distribution", "pytest==0.1", "pytest==newest"])
def test_what_is_no_tree_says_what_to_give(where):
    with pytest.raises(DoctorError, match=r"source tree|give a path"):
        Workbench().core(where)


def test_a_folder_without_the_package_and_a_broken_archive(tmp_path):
    with pytest.raises(DoctorError, match="no folder 'vllm'"):
        Workbench().core(tmp_path)
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(DoctorError, match="not a wheel"):
        Workbench().core(broken)
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(DoctorError, match="no package 'vllm'"):
        Workbench().core(tmp_path / "other.whl")


def test_an_archive_cannot_name_files_outside(trees, tmp_path):
    evil = tmp_path / "evil.whl"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm/../../../outside.py", "x = 1\n")
        archive.writestr("/vllm/absolute.py", "x = 1\n")
    before = sorted(tmp_path.rglob("*"))
    Workbench(processes=1).core(evil)
    assert sorted(tmp_path.rglob("*")) == before


def test_child_processes_read_the_same(trees):
    many = {f"vllm/m{number}.py": f"def f{number}(): ...\n" for number in range(300)}
    core = trees.core({**CORE, **many, "vllm/bad.py": "def broken(:\n"})
    plugin = trees.plugin({**PLUGIN, "vllm_ascend/x.py": "from vllm.m7 import f7\nfrom vllm.m8 import f7\n"})
    reports, steps = [], []
    for processes in (1, 2):
        bench = Workbench(progress=lambda *step: steps.append(step), processes=processes)
        reports.append(bench.run(bench.core(core), bench.plugin(plugin)))
    assert [one.findings for one in reports[:1]] == [one.findings for one in reports[1:]]
    assert {found.kind for found in reports[0].findings} == {"unreadable", "missing-name"}
    assert ("reading vllm 0.30.0", 303, 303) in steps


def test_a_process_that_dies_is_one_error(trees, monkeypatch):
    monkeypatch.setattr(workers, "_SERVE", "raise SystemExit(3)")
    core = trees.core({f"vllm/m{number}.py": "" for number in range(300)})
    bench = Workbench(processes=2)
    with pytest.raises(DoctorError, match="a process that read source files ended"):
        bench.run(bench.core(core), bench.plugin(trees.plugin(PLUGIN)))
