"""The four breaks that stopped the users' first runs, rebuilt in small, and the two of the released 0.23.0 pair."""

import pytest

GRAPHS = """
    class GraphManager:
        def __init__(self, vllm_config, device, cudagraph_mode, decode_query_len{extra}):
            self.device = device
"""
RUNNER = """
    from vllm.v1.worker.gpu import attn_utils
    from vllm.v1.worker.gpu.graphs import GraphManager
    from vllm.v1.worker.gpu.input_batch import InputBatch


    class GPUModelRunner:
        def __init__(self, vllm_config, device):
            self.vllm_config = vllm_config
            self.device = device

        def load_model(self):
            self.graphs = GraphManager(
                self.vllm_config,
                self.device,
                None,
                decode_query_len=1,{passed}
            )

        def initialize_kv_cache(self, kv_cache_config):
            self.caches = attn_utils.init_kv_cache(kv_cache_config)

        def execute_model(self, scheduler_output):
            return self.prepare_inputs(scheduler_output)

        def prepare_inputs(self, scheduler_output):
            return InputBatch(req_ids=[], num_reqs=0)
"""
BATCH = """
    from dataclasses import dataclass


    @dataclass
    class InputBatch:
        req_ids: list[str]
        num_reqs: int{extra}
"""
ATTN = """
    def init_kv_cache(kv_cache_config):
        raw = {}
        return _reshape_kv_cache(%s)


    def _reshape_kv_cache(%s):
        return raw
"""


def core(*, extra="", passed="", field="", call="raw", parameters="raw", sampler="_compute_global_lse"):
    return {
        "vllm/v1/worker/gpu/graphs.py": GRAPHS.format(extra=extra),
        "vllm/v1/worker/gpu/model_runner.py": RUNNER.format(passed=passed),
        "vllm/v1/worker/gpu/input_batch.py": BATCH.format(extra=field),
        "vllm/v1/worker/gpu/attn_utils.py": ATTN % (call, parameters),
        "vllm/v1/worker/gpu/rejection.py": f"def {sampler}(logits):\n    return logits\n",
    }


PLUGIN_RUNNER = "vllm_ascend/worker/v2/model_runner.py"
PLUGIN = {
    PLUGIN_RUNNER: """
        from contextlib import contextmanager

        import vllm.v1.worker.gpu.attn_utils as core_attn
        import vllm.v1.worker.gpu.model_runner as core_runner
        from vllm.v1.worker.gpu.graphs import GraphManager
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        from vllm_ascend.worker.v2.input_batch import AscendInputBatch


        class AclGraphManager(GraphManager):
            def __init__(self, vllm_config, device, cudagraph_mode, decode_query_len, runner):
                super().__init__(vllm_config, device, cudagraph_mode, decode_query_len)
                self.runner = runner


        @contextmanager
        def graph_manager(runner):
            def factory(vllm_config, device, cudagraph_mode, decode_query_len):
                return AclGraphManager(vllm_config, device, cudagraph_mode, decode_query_len, runner)

            original = core_runner.GraphManager
            core_runner.GraphManager = factory
            yield
            core_runner.GraphManager = original


        def reshape_on_npu(raw):
            return raw


        core_attn._reshape_kv_cache = reshape_on_npu


        class NPUModelRunner(GPUModelRunner):
            def load_model(self):
                with graph_manager(self):
                    super().load_model()

            def prepare_inputs(self, scheduler_output):
                return AscendInputBatch(
                    req_ids=[],
                    num_reqs=0,
                    seq_lens_np=None,
                )
    """,
    "vllm_ascend/worker/v2/input_batch.py": """
        from dataclasses import dataclass, field
        from typing import Any

        from vllm.v1.worker.gpu.input_batch import InputBatch


        @dataclass
        class AscendInputBatch(InputBatch):
            seq_lens_np: Any
    """,
    "vllm_ascend/worker/v2/sampler.py": """
        from vllm.v1.worker.gpu.rejection import (
            _compute_global_lse,
        )
    """,
}


def test_the_core_that_the_plugin_was_made_for_has_no_finding(trees):
    assert trees.examine(core(), PLUGIN).findings == ()


def test_a_factory_without_the_graph_capture_arguments(trees):
    made = core(extra=", lora_capture_cases=None", passed="\n                lora_capture_cases=[1],")
    found = trees.only(trees.examine(made, PLUGIN).errors, "replacement-signature")
    assert (found.name, found.severity, found.exception) == ("lora_capture_cases", "start-up", "TypeError")
    assert (found.file, found.line) == (PLUGIN_RUNNER, trees.line(PLUGIN, PLUGIN_RUNNER, "def factory("))
    runner = "vllm/v1/worker/gpu/model_runner.py"
    assert (found.core_file, found.core_line) == (runner, trees.line(made, runner, "self.graphs = GraphManager("))
    assert found.symbol.endswith("graph_manager.<locals>.factory")


def test_a_renamed_helper_of_the_rejection_sampler(trees):
    report = trees.examine(core(sampler="_compute_global_logsumexp"), PLUGIN)
    found = trees.only(report.findings, "missing-name")
    assert (found.symbol, found.exception) == ("vllm.v1.worker.gpu.rejection:_compute_global_lse", "ImportError")
    path = "vllm_ascend/worker/v2/sampler.py"
    assert found.file == path
    assert found.line <= trees.line(PLUGIN, path, "_compute_global_lse") <= found.end_line
    assert (found.core_file, found.core_line) == ("vllm/v1/worker/gpu/rejection.py", 1)
    assert "_compute_global_logsumexp" in found.core_has


def test_new_fields_of_the_input_batch(trees):
    made = core(field="\n        is_padding: bool")
    found = trees.only(trees.examine(made, PLUGIN).errors, "call-argument")
    assert (found.name, found.severity) == ("is_padding", "first-step")
    assert (found.file, found.line) == (PLUGIN_RUNNER, trees.line(PLUGIN, PLUGIN_RUNNER, "return AscendInputBatch("))
    assert found.end_line == found.line + 4
    batch = "vllm/v1/worker/gpu/input_batch.py"
    assert (found.core_file, found.core_line) == (batch, trees.line(made, batch, "class InputBatch"))


def test_new_fields_with_defaults_break_the_class_itself(trees):
    made = core(field="\n        is_padding: bool = False")
    found = trees.only(trees.examine(made, PLUGIN).findings, "dataclass-order")
    path = "vllm_ascend/worker/v2/input_batch.py"
    assert (found.name, found.severity, found.exception) == ("seq_lens_np", "import-time", "TypeError")
    assert found.file == path
    assert found.line <= trees.line(PLUGIN, path, "class AscendInputBatch") <= found.end_line
    batch = "vllm/v1/worker/gpu/input_batch.py"
    assert (found.core_file, found.core_line) == (batch, trees.line(made, batch, "is_padding"))


def test_the_reshape_gets_the_kv_cache_config(trees):
    made = core(call="raw, kv_cache_config=kv_cache_config", parameters="raw, kv_cache_config")
    found = trees.only(trees.examine(made, PLUGIN).findings, "replacement-signature")
    assert (found.name, found.level) == ("kv_cache_config", "warning" if found.severity == "rare-path" else "error")
    assert (found.file, found.line) == (PLUGIN_RUNNER, trees.line(PLUGIN, PLUGIN_RUNNER, "def reshape_on_npu"))
    attn = "vllm/v1/worker/gpu/attn_utils.py"
    assert (found.core_file, found.core_line) == (attn, trees.line(made, attn, "return _reshape_kv_cache"))


def test_a_base_constructor_without_the_argument_that_the_plugin_passes(trees):
    """The released 0.23.0 pair: the plugin is ahead of its core."""
    plugin = dict(PLUGIN)
    plugin[PLUGIN_RUNNER] = plugin[PLUGIN_RUNNER].replace(
        "super().__init__(vllm_config, device, cudagraph_mode, decode_query_len)",
        "super().__init__(vllm_config, device, cudagraph_mode, decode_query_len, lora_capture_cases=None)",
    )
    plugin["vllm_ascend/other.py"] = "def f(other):\n    other.__init__ = f\n"  # no reason to doubt every __init__
    found = trees.only(trees.examine(core(), plugin).errors, "call-argument")
    assert (found.name, found.severity) == ("lora_capture_cases", "start-up")
    assert (found.file, found.line) == (PLUGIN_RUNNER, trees.line(plugin, PLUGIN_RUNNER, "super().__init__("))
    assert found.core_file == "vllm/v1/worker/gpu/graphs.py"
    assert found.symbol == "vllm.v1.worker.gpu.graphs:GraphManager.__init__"


@pytest.mark.parametrize("handled", [True, False])
def test_an_import_that_is_handled_is_a_note(trees, handled):
    body = "from vllm.gone import thing\n"
    source = f"try:\n    {body}except ImportError:\n    thing = None\n" if handled else body
    report = trees.examine(core(), {"vllm_ascend/__init__.py": source})
    (found,) = report.findings
    assert found.level == ("note" if handled else "error")


METADATA = {
    "vllm/v1/backend.py": """
        class CommonAttentionMetadata:
            def __init__(self, num_reqs):
                self.num_reqs = num_reqs


        class Builder:
            def build(self, common: CommonAttentionMetadata):
                return common.num_reqs
    """,
    "vllm/v1/states.py": """
        from vllm.v1.backend import Builder, CommonAttentionMetadata


        def build_attn_metadata(builder: Builder):
            common = CommonAttentionMetadata(num_reqs=1)
            return builder.build(common=common)


        class ModelState:
            def prepare_attn(self, builder):
                return build_attn_metadata(builder)
    """,
}
NARROWED = {
    "vllm_ascend/attention.py": """
        from vllm.v1.backend import Builder, CommonAttentionMetadata
        from vllm.v1.states import ModelState


        class AscendCommonAttentionMetadata(CommonAttentionMetadata):
            prefill_context_parallel_metadata = None


        def split(common_attn_metadata: AscendCommonAttentionMetadata):
            return common_attn_metadata.prefill_context_parallel_metadata


        class AscendBuilder(Builder):
            def build(self, common: AscendCommonAttentionMetadata):
                common.num_reqs
                return split(common)


        class AscendModelState(ModelState):
            {method}
    """,
}


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("pass", 1),
        ("def prepare_attn(self, builder): return super().prepare_attn(builder)", 1),
        ("def prepare_attn(self, builder): return None", 0),
    ],
)
def test_the_core_passes_its_own_metadata(trees, method, count):
    """The other one of the released 0.23.0 pair."""
    path = "vllm_ascend/attention.py"
    plugin = {path: NARROWED[path].format(method=method)}
    found = [one for one in trees.examine(METADATA, plugin).warnings if one.kind == "narrowed-parameter"]
    line = trees.line(plugin, path, "return common_attn_metadata.prefill")
    assert [(one.name, one.file, one.line) for one in found] == [
        ("prefill_context_parallel_metadata", path, line)
    ] * count
    site = trees.line(METADATA, "vllm/v1/states.py", "return builder.build(")
    assert [(one.core_file, one.core_line) for one in found] == [("vllm/v1/states.py", site)] * count


def test_every_read_of_what_the_cores_object_lacks(trees):
    path = "vllm_ascend/attention.py"
    source = NARROWED[path].format(method="pass").replace("context_parallel_metadata = None", "a = prefill_b = None")
    read = "return common_attn_metadata.prefill_context_parallel_metadata"
    source = source.replace(read, "return common_attn_metadata.prefill_a, common_attn_metadata.prefill_b")
    found = [one for one in trees.examine(METADATA, {path: source}).warnings if one.kind == "narrowed-parameter"]
    assert sorted(one.name for one in found) == ["prefill_a", "prefill_b"]


def test_metadata_that_the_core_only_hands_on_may_be_the_plugins(trees):
    core = dict(METADATA)
    core["vllm/v1/states.py"] = (
        core["vllm/v1/states.py"]
        .replace(
            "build_attn_metadata(builder: Builder):",
            "build_attn_metadata(builder: Builder, common: CommonAttentionMetadata):",
        )
        .replace("common = CommonAttentionMetadata(num_reqs=1)", "pass")
    )
    plugin = {path: text.format(method="pass") for path, text in NARROWED.items()}
    assert [one for one in trees.examine(core, plugin).findings if one.kind == "narrowed-parameter"] == []
