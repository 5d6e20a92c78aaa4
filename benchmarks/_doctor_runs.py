"""What is run of a plugin, in a child: its imports, its platform and worker, and the Model Runner V2 in an engine."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from _doctor_edits import PLUGIN
from _doctor_errors import classify
from _doctor_frames import text_of

if TYPE_CHECKING:
    from pathlib import Path

    from _doctor_book import Book

# vllm-ascend's own order at start-up: its platform patches, then what the worker imports.
FIRST = ("", ".platform", ".patch.platform", ".ops", ".patch.worker", ".worker.v2.model_runner", ".worker.worker")


def modules(tree: Path) -> list[str]:
    """Every module of the plugin, those of the start-up first."""
    names = []
    for path in sorted((tree / PLUGIN).rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    first = [PLUGIN + name for name in FIRST if PLUGIN + name in names]
    return [*first, *(name for name in names if name not in first)]


class Trace:
    """Lines that ran and functions that were entered, of plugin files only."""

    def __init__(self, book: Book) -> None:
        self.prefix = f"{book.tree}/{PLUGIN}/"
        self.cut = len(str(book.tree)) + 1
        self.lines: dict[str, set[int]] = {}
        self.entered: dict[str, set[int]] = {}
        self._local: dict[str, Any] = {}

    def start(self) -> None:
        """From now on, in this thread and those that it starts."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> None:
        """No longer."""
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: Any, _event: str, _argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(self.prefix):
            return None
        self.entered.setdefault(path, set()).add(frame.f_code.co_firstlineno)
        if path not in self._local:
            seen = self.lines.setdefault(path, set())

            def local(frame: Any, event: str, _argument: Any) -> Any:
                if event == "line":
                    seen.add(frame.f_lineno)
                return local

            self._local[path] = local
        return self._local[path]

    def as_dict(self) -> dict[str, Any]:
        """Lines and first lines of entered functions by relative file."""
        return {
            name: {path[self.cut :]: sorted(lines) for path, lines in table.items()}
            for name, table in (("lines", self.lines), ("entered", self.entered))
        }


def import_all(book: Book, names: list[str]) -> dict[str, Any]:
    """In a child: import each module, repairing in place; rows, edits and what could not be imported."""
    trace = Trace(book)
    findings: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    imported = 0
    trace.start()
    for name in names:
        for _ in range(40):
            try:
                importlib.import_module(name)
            except BaseException as error:
                sys.settrace(None)
                found = classify(error, book)
                findings += [asdict(one) for one in found]
                fresh = book.add(edit for one in found for edit in one.edits)
                trace.start()
                if not fresh:
                    failed[name] = f"{type(error).__name__}: {text_of(error, 300)}"
                    print(f"--- {name}", flush=True)
                    traceback.print_exception(error)
                    break
            else:
                imported += 1
                break
    trace.stop()
    return {"findings": findings, "failed": failed, "imported": imported, "trace": trace.as_dict()}


# What vLLM calls of a platform, in its order; the simulator has a platform of its own, so it never comes here.
PLATFORM_CALLS = (
    ("pre_register_and_update", False),
    ("apply_config_platform_defaults", True),
    ("check_and_update_config", True),
    ("register_custom_kv_cache_specs", True),
    ("update_block_size_for_backend", True),
    ("import_kernels", False),
)


def run_platform(book: Book, job: dict[str, Any], _scenario: str) -> dict[str, Any]:
    """In a child: the calls that vLLM makes of vllm-ascend's own platform, and its worker's constructor, one by one."""
    from vllm.engine.arg_utils import EngineArgs

    trace = Trace(book)
    findings: list[dict[str, Any]] = []
    stopped: list[str] = []

    def attempt(name: str, call: Any) -> Any:
        trace.start()
        try:
            return call()
        except BaseException as error:
            sys.settrace(None)
            print(f"--- {name}", flush=True)
            traceback.print_exception(error)
            findings.extend(asdict(one) for one in classify(error, book))
            stopped.append(f"{name}: {type(error).__name__}: {text_of(error, 200)}")
        finally:
            trace.stop()

    def constructed() -> Any:
        from vllm_ascend.worker.worker import NPUWorker

        place = {"local_rank": 0, "rank": 0, "distributed_init_method": "tcp://127.0.0.1:1", "is_driver_worker": True}
        return NPUWorker(vllm_config=config, **place)

    arguments = dict(job["engine"]) | {"model": job["models"]["target"]}
    config = attempt("create_engine_config", lambda: EngineArgs(**arguments).create_engine_config())
    platform = attempt("NPUPlatform", lambda: importlib.import_module("vllm_ascend.platform").NPUPlatform)
    if config is not None and platform is not None:
        config.device_config.device_type = "npu"  # else its configuration is left as it is
        for name, takes_config in PLATFORM_CALLS:
            if function := getattr(platform, name, None):
                attempt(name, functools.partial(function, config) if takes_config else function)
        attempt("NPUWorker", constructed)
    stage = "start-up" if stopped else "done"
    return {"stage": stage, "findings": findings, "error": "; ".join(stopped), "trace": trace.as_dict()}


def run_engine(book: Book, job: dict[str, Any], scenario: str) -> dict[str, Any]:
    """In a child: construct the engine and its runner, then step it with requests of several kinds."""
    trace = Trace(book)
    stage = "start-up"
    findings: list[dict[str, Any]] = []
    text = ""
    trace.start()
    try:
        from vllm import LLM, SamplingParams

        arguments = dict(job["engine"]) | {"model": job["models"]["target"]}
        if scenario == "eagle":
            arguments["speculative_config"] = {
                "method": "eagle", "model": job["models"]["draft"], "num_speculative_tokens": 2,
            }  # fmt: skip
        llm = LLM(**arguments)
        stage = "step"
        prompts = [{"prompt_token_ids": list(range(20 + i, 20 + i + length))} for i, length in enumerate((5, 40, 90))]
        common: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, "detokenize": False}
        kinds: list[dict[str, Any]] = [{"temperature": 0.0}]
        if scenario == "dense":
            kinds.append({"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1})
            kinds.append({"temperature": 0.0, "repetition_penalty": 1.1, "min_tokens": 2, "logit_bias": {30: 1.0}})
        for kind in kinds:
            llm.generate(prompts, SamplingParams(**common, **kind), use_tqdm=False)
        stage = "done"
    except BaseException as error:
        sys.settrace(None)
        traceback.print_exception(error)
        findings = [asdict(one) for one in classify(error, book)]
        text = f"{type(error).__name__}: {text_of(error)}"
    trace.stop()
    return {"stage": stage, "findings": findings, "error": text, "trace": trace.as_dict()}
