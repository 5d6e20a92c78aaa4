"""Rule: the targets of this kit's hooks exist in both trees, with the signature and the body a hook relies on.

Hooks are read off the source of the packages that carry them: `Hook(target=..., signature=..., ast_sha256=...)` and
tables of "module:Class.method" with accepted hashes. Texts may be built from module constants.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_pairs.contract import node_sha256
from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.findings import DoctorError, Finding
from vllm_pairs.doctor.nodes import walk
from vllm_pairs.doctor.outline import parse
from vllm_pairs.doctor.rules import BY_KIND
from vllm_pairs.doctor.signatures import signature_of
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm_pairs.doctor.analysis import Analysis

_TARGET = re.compile(r"(vllm|vllm_ascend)(\.\w+)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HookSource:
    """One target that a package names: accepted hashes (empty: any body) and the signature (None: any)."""

    file: str
    line: int
    target: str
    hashes: tuple[str, ...] = ()
    signature: str | None = None


def hook_packages() -> list[tuple[str, Path]]:
    """Installed distributions that carry hooks: those that need vllm-pairs, and vllm-pairs itself."""
    found: dict[str, Path] = {"vllm_pairs": Path(__file__).parent.parent}
    for distribution in metadata.distributions():
        needs = distribution.requires or []
        if any(re.match(r"vllm[-_]pairs\b", need) for need in needs):
            name = str(distribution.metadata["Name"]).replace("-", "_")
            if (folder := _folder_of(distribution, name)) is not None:
                found[name] = folder
    return sorted(found.items())


def _folder_of(distribution: metadata.Distribution, name: str) -> Path | None:
    beside = Path(str(distribution.locate_file(name)))
    if beside.is_dir():
        return beside
    for file in distribution.files or ():  # an editable install points to its sources with a .pth file
        if file.suffix == ".pth":
            lines = Path(str(file.locate())).read_text(encoding="utf-8").split()
            for folder in (Path(line) / name for line in lines):
                if folder.is_dir():
                    return folder
    return None


def read_hooks(where: Path) -> list[HookSource]:
    """The targets that a package's source names; `where` is its folder. DoctorError where there is none."""
    if not where.is_dir():
        raise DoctorError(f"hooks package {str(where)!r} is not a folder; give the folder of an import package")
    found: list[HookSource] = []
    for file in sorted(where.rglob("*.py")):
        if "doctor" in file.relative_to(where).parts:
            continue
        shown = f"{where.name}/{file.relative_to(where).as_posix()}"
        try:
            found += _in_module(parse(file.read_bytes(), shown), shown)
        except (SyntaxError, OSError) as error:
            raise DoctorError(f"hooks package: {shown} cannot be read: {error}") from error
    return found


def _in_module(tree: ast.Module, file: str) -> Iterator[HookSource]:
    texts: dict[str, str] = {}
    for part in tree.body:
        target: ast.expr | None = part.target if isinstance(part, ast.AnnAssign) else None
        target = part.targets[0] if isinstance(part, ast.Assign) else target
        value = part.value if isinstance(part, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and (text := _text(value, texts)) is not None:
            texts[target.id] = text
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            for argument, default in zip(arguments, node.args.defaults, strict=True):
                if (text := _text(default, texts)) is not None:
                    texts.setdefault(argument.arg, text)
    for node in walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                text = _text(key, texts)
                if text is not None and _TARGET.fullmatch(text) and key is not None:
                    yield HookSource(file, key.lineno, text, _hashes(value))
        elif isinstance(node, ast.Call) and last_name(node.func) == "Hook":
            words = {word.arg: word.value for word in node.keywords}
            text = _text(words.get("target"), texts)
            if text is not None and _TARGET.fullmatch(text):
                signature = _text(words.get("signature"), texts)
                yield HookSource(file, node.lineno, text, _hashes(words.get("ast_sha256")), signature)


def _text(node: ast.expr | None, texts: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return texts.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part.value if isinstance(part, ast.FormattedValue) else part, texts) for part in node.values]
        return None if None in parts else "".join(part for part in parts if part is not None)
    return None


def _hashes(node: ast.expr | None) -> tuple[str, ...]:
    constants = [part.value for part in walk(node) if isinstance(part, ast.Constant)] if node is not None else []
    return tuple(text for text in constants if isinstance(text, str) and _SHA256.fullmatch(text))


def check_hooks(analysis: Analysis, sources: Iterable[HookSource]) -> list[Finding]:
    """The hooks that this core and plugin would refuse."""
    return [finding for source in sources if (finding := _check(analysis, source)) is not None]


def _check(analysis: Analysis, source: HookSource) -> Finding | None:
    module, _, path = source.target.partition(":")
    outer, _, name = path.rpartition(".")
    world = analysis.world
    if not world.has_module(module):
        return _finding(analysis, source, f"module {module} does not exist", None, f"no module {module}")
    if world.outlines[module].problem is not None:
        return None  # reported as unreadable
    ref = Ref(module, outer)
    if outer and analysis.classes.outline(ref) is None:
        found = world.member(module, outer)
        if not isinstance(found, Value) or found.sort != "class":
            return _finding(analysis, source, f"{module} has no class {outer}", Ref(module), f"no {outer}")
        ref = found.ref
    owner = analysis.classes.owner(ref, name)
    if owner is None:
        if not analysis.classes.mro(ref).complete:
            return None
        return _finding(analysis, source, f"{outer} has no {name}", ref, f"no {name}")
    made = Ref(owner.module, f"{owner.qualname}.{name}")
    node = _unpruned(analysis, made)
    if node is None:
        return None
    if source.signature is not None and (text := _plain(node)) != source.signature:
        return _finding(analysis, source, f"the signature is {text}, the hook wants {source.signature}", made, text)
    if source.hashes and (digest := node_sha256(node)) not in source.hashes:
        return _finding(analysis, source, "the body is not one that the hook was made for", made, digest)
    return None


def _plain(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The signature with defaults as the source has them, as `contract.signature_text` prints it for plain defaults."""
    copy = ast.parse(ast.unparse(ast.FunctionDef(node.name, node.args, [ast.Pass()], [], lineno=1))).body[0]
    assert isinstance(copy, ast.FunctionDef)
    for argument in walk(copy.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"({ast.unparse(copy.args)})" if signature_of(node).params else "()"


def _unpruned(analysis: Analysis, ref: Ref) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The definition as it is written: a hash covers every branch."""
    tree = analysis.world.tree_of(ref.module)
    source = tree.sources.get(ref.module) if tree else None
    if source is None:
        return None
    node: ast.AST = parse(source, ref.module)
    for step in ref.qualname.split("."):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        inner = [part for part in walk(node) if isinstance(part, kinds) and part.name == step and part is not node]
        if not inner:
            return None
        node = inner[0]
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _finding(analysis: Analysis, source: HookSource, message: str, core: Ref | None, has: str) -> Finding:
    rule = BY_KIND["hook-target"]
    return Finding(
        rule=rule.id,
        kind=rule.kind,
        exception=rule.exception,
        severity="start-up",
        level="warning",
        confidence="high",
        symbol=source.target,
        name=source.target.rpartition(".")[2],
        file=source.file,
        line=source.line,
        end_line=source.line,
        message=f"the hook on {source.target} is refused: {message}",
        core_file=analysis.world.path(core.module) if core is not None else None,
        core_line=(analysis.line_of(core) or 1) if core is not None else None,
        core_has=has,
    )
