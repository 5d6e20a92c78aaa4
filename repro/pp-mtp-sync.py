"""Pipeline parallel with MTP drafts and synchronous scheduling: where the core stops, the Ascend runner goes on.

vLLM's own runner asserts that a step schedules at least as many tokens as it takes logits from; the Ascend runner
replaces that function without it, and its tokens are wrong. Real here: both runners, two worker processes each. The
tiny model does not declare pipeline support and vLLM's check of it is answered; drafts are an oracle's, right 7 in 10.
"""

# pairs: 0.29.0 0.30.0

from __future__ import annotations

from _show import finish


def core_asserts() -> bool:
    """Whether the core's `prepare_inputs` has the assertion and the Ascend runner's has not, read from their files."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    def has_it(package: str, file: str) -> bool:
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        tree = ast.parse((Path(spec.submodule_search_locations[0]) / file).read_text(encoding="utf-8"))
        methods = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "prepare_inputs"
        ]
        assert methods, f"{package}/{file} has no prepare_inputs any more"
        inner = [node for method in methods for node in ast.walk(method) if isinstance(node, ast.Assert)]
        return any("num_logits" in ast.unparse(node) for node in inner)

    return has_it("vllm", "v1/worker/gpu/model_runner.py") and not has_it("vllm_ascend", "worker/v2/model_runner.py")


def main() -> None:
    """Upstream as it is, and the kit's hook, which refuses this combination."""
    from ascend_sim import activate

    activate()
    asserts = core_asserts()
    from _pipeline import equal, results

    hook = {"enabled": True, "strict": True}
    found = results(
        {"name": "upstream", "hook": None, "async": False},
        {"name": "hook", "hook": hook, "async": False},
    )
    want = "8 of 8 requests with the reference's tokens, or an engine that stops"
    seen = equal(found, "upstream")
    refused = "error" in found["hook"]
    rows = [
        {"what": "upstream: tokens", "expected": want, "seen": seen, "faulty": True},
        {
            "what": "an assertion of the core is missing in the Ascend runner",
            "expected": False,
            "seen": asserts,
            "faulty": True,
        },
        {"what": "with the kit's hook the engine refuses to start", "expected": True, "seen": refused},
    ]
    if seen.startswith("8 of 8") or "tokens" not in found["upstream"]:
        rows[0]["seen"] = want  # right, or stopped: then there is no fault to show
    finish("pp-mtp-sync", rows)


if __name__ == "__main__":
    main()
