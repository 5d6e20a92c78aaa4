"""Import every module of an installed package: what it needs must be declared, the engine apart.

Run by the Python of an environment that holds the package's wheel and its declared dependencies only:
`python import_all.py IMPORT_NAME`. Prints how many modules were imported and how many wait for the engine; ends with
status 1 and names each module that needs something undeclared.
"""

import importlib
import pkgutil
import sys

ENGINE = frozenset({"torch", "torch_npu", "triton", "vllm", "vllm_ascend", "transformers", "tokenizers", "safetensors"})


def walk(name: str) -> list[str]:
    """Dotted names of a package and of everything inside it, found without importing them."""
    names = [name]
    package = importlib.import_module(name)
    stack = [(name, list(package.__path__))]
    while stack:
        parent, folders = stack.pop()
        for found in pkgutil.iter_modules(folders, parent + "."):
            leaf = found.name.rpartition(".")[2]
            if leaf != "__main__":
                names.append(found.name)
            if found.ispkg:
                stack.append((found.name, [f"{folder}/{leaf}" for folder in folders]))
    return sorted(names)


def main(name: str) -> int:
    """Import them all; returns the exit status."""
    imported: list[str] = []
    waiting: list[str] = []
    undeclared: list[str] = []
    for module in walk(name):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            (waiting if missing in ENGINE else undeclared).append(f"{module} needs {error.name!r}")
        else:
            imported.append(module)
    print(f"{name}: {len(imported)} modules import alone, {len(waiting)} need the engine")
    for line in undeclared:
        print(f"{line}, which the package does not declare", file=sys.stderr)
    return 1 if undeclared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
