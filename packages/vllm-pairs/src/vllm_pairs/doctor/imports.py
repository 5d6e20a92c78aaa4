"""Rule: imports of modules and names that the core does not have."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft
from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.outline import absolute
from vllm_pairs.doctor.world import MISSING, Ref

if TYPE_CHECKING:
    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.places import Place

_BY_TEXT = ("import_module", "resolve_obj_by_qualname", "__import__")


def check_imports(analysis: Analysis, node: ast.AST, place: Place) -> None:
    """Look at one node: an import statement, or a call that imports by a text."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            _loads(analysis, place, alias.name)
            if _of_core(analysis, alias.name):
                _module(analysis, alias.name, node, place)
    elif isinstance(node, ast.ImportFrom):
        tree = analysis.world.roots[analysis.plugin]
        module = absolute(place.module, tree.is_package(place.module), node)
        _loads(analysis, place, module, *(f"{module}.{alias.name}" for alias in node.names))
        if _of_core(analysis, module) and _module(analysis, module, node, place):
            for alias in node.names:
                if alias.name != "*":
                    _name(analysis, module, alias, node, place)
    elif isinstance(node, ast.Call) and last_name(node.func) in _BY_TEXT and node.args:
        text = node.args[0]
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and _of_core(analysis, text.value):
            module = text.value
            if last_name(node.func) == "resolve_obj_by_qualname":
                module = module.rpartition(".")[0]
            _module(analysis, module, node, place)


def _loads(analysis: Analysis, place: Place, *modules: str) -> None:
    """Note which modules of the plugin an import loads, where it is always run (its function's callers decide, too)."""
    if not place.typing and (not place.conditional or place.by_parameter):
        own = [module for module in modules if module.partition(".")[0] == analysis.plugin]
        analysis.imports.setdefault(place.function or place.module, []).extend(own)


def _of_core(analysis: Analysis, module: str) -> bool:
    return module == analysis.core or module.startswith(f"{analysis.core}.")


def _module(analysis: Analysis, module: str, node: ast.AST, place: Place) -> bool:
    """Whether the module is there; a finding where it is not."""
    if analysis.world.has_module(module):
        return True
    nearest = analysis.world.nearest(module)
    missing = module[: module.find(".", len(nearest) + 1)] if "." in module[len(nearest) + 1 :] else module
    analysis.refused.setdefault(place.module, set()).add(missing)
    near = f"; nearest package {nearest}" if nearest else ""
    analysis.add(
        Draft(
            kind="missing-module",
            symbol=missing,
            name=missing,
            node=node,
            place=place,
            message=f"module {missing} does not exist in this core",
            core=Ref(nearest) if nearest else None,
            core_line=1 if nearest else None,
            core_has=f"no module {missing}{near}",
            harmless=place.typing or place.catches("ModuleNotFoundError"),
        )
    )
    return False


def _name(analysis: Analysis, module: str, alias: ast.alias, node: ast.ImportFrom, place: Place) -> None:
    if analysis.world.member(module, alias.name, typing=place.typing) is not MISSING:
        return
    has, line = analysis.world.nearest_name(module, alias.name)
    outline = analysis.world.outlines.get(module)
    if outline and alias.name in outline.typing_names:
        has = f"{module} binds {alias.name} for type checkers only"
    analysis.add(
        Draft(
            kind="missing-name",
            symbol=f"{module}:{alias.name}",
            name=alias.name,
            node=node,
            place=place,
            message=f"{module} of this core has no {alias.name!r}",
            injectable=((module, alias.name),),
            core=Ref(module),
            core_line=line,
            core_has=has,
            harmless=place.typing or place.catches("ImportError"),
        )
    )
