"""Prints, as JSON, what every attribute of vLLM, vllm-ascend and torch is in a worker after init.

``python attributes_run.py MODEL OUT [additional_config as JSON]``: builds an engine in this process, lets it generate,
and describes each attribute of each imported module and class by where its code is. Two processes are compared by
these descriptions, because an object has no identity across processes.
"""

import json
import os
import re
import sys
import types

TOPS = ("vllm", "vllm_ascend", "torch", "torch_npu")


def where(code: types.CodeType) -> str:
    """File below its root and line, the same in every environment; generated code has no line."""
    file = re.sub(r".*?(site-packages|overlay|src)/", "", code.co_filename)
    return f"{file}:{code.co_firstlineno}" if "/" in file else code.co_name


def describe(value: object, depth: int = 0) -> str:
    """What a value is: its code, or the class it is or belongs to. Wrapped functions show their whole chain."""
    # By exact type: some objects of torch answer every attribute, and a wrapt proxy says that it is what it wraps.
    if type(value) in (staticmethod, classmethod, types.MethodType):
        value = value.__func__
    if type(value) is property:
        return "property " + " ".join(describe(part) for part in (value.fget, value.fset) if part)
    if type(value) is types.FunctionType:
        inner = value.__dict__.get("__wrapped__") if depth < 5 else None
        return where(value.__code__) + (f" over {describe(inner, depth + 1)}" if inner is not None else "")
    if issubclass(type(value), type):
        return f"class {value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


def attributes() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in TOPS or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if key.startswith("__"):
                continue
            found[f"{name}.{key}"] = describe(value)
            if isinstance(value, type) and value.__module__ == name:
                for attribute, member in list(vars(value).items()):
                    if not attribute.startswith("__") or attribute in ("__init__", "__call__"):
                        found[f"{name}.{key}.{attribute}"] = describe(member)
    return found


def main(model: str, out: str, config: str = "") -> None:
    import vllm
    from vllm import LLM, SamplingParams

    extra = {"additional_config": json.loads(config)} if config else {}
    llm = LLM(
        model=model, max_model_len=256, dtype="float32", enforce_eager=True, block_size=128, max_num_seqs=4, seed=0,
        kv_cache_memory_bytes=32 << 20, **extra,
    )  # fmt: skip
    tokens = llm.generate(["a b"], SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True), use_tqdm=False)
    assert len(tokens[0].outputs[0].token_ids) == 3
    ours = ("vllm_pairs", "ascend_sim", "mrv2_metadata", "kv_plan_guard", "layerwise_sched", "serving_evidence")
    report = {
        "vllm": vllm.__version__,
        "attributes": attributes(),
        "ours": sorted({name.partition(".")[0] for name in sys.modules} & set(ours)),
    }
    with open(out, "w") as file:
        json.dump(report, file)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
