"""Reading facts: a missing or odd attribute is UNKNOWN, and that is the device's."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace as Holder

import pytest
from mrv2_metadata.adapters.facts import runner_facts, step_facts
from mrv2_metadata.authority import UNKNOWN, Action, Source, decide, decide_runner
from mrv2_metadata.config import Config


def vllm_config(**changes):
    config = Holder(
        speculative_config=None,
        scheduler_config=Holder(async_scheduling=True),
        model_config=Holder(runner_type="generate", is_diffusion=False),
        parallel_config=Holder(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_eplb=False,
        ),
        kv_transfer_config=None,
        additional_config={},
    )
    for path, value in changes.items():
        *parts, last = path.split("__")
        holder = config
        for part in parts:
            holder = getattr(holder, part)
        setattr(holder, last, value)
    return config


def read(config):
    return runner_facts(config, Config())


def test_an_ordinary_dense_engine_is_the_schedulers():
    assert decide_runner(read(vllm_config())).source is Source.SCHEDULER


PATHS = [
    "speculative_config",
    "kv_transfer_config",
    "scheduler_config",
    "scheduler_config.async_scheduling",
    "model_config.runner_type",
    "model_config.is_diffusion",
    "parallel_config",
    "parallel_config.pipeline_parallel_size",
    "parallel_config.decode_context_parallel_size",
    "parallel_config.prefill_context_parallel_size",
    "parallel_config.enable_eplb",
    "additional_config",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_missing_attribute_is_the_devices(path):
    config = vllm_config()
    *parts, last = path.split(".")
    holder = config
    for part in parts:
        holder = getattr(holder, part)
    delattr(holder, last)
    assert decide_runner(read(config)).source is Source.DEVICE


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"speculative_config": Holder(method="eagle", num_speculative_tokens=3)}, "speculation"),
        ({"kv_transfer_config": Holder(kv_connector="X", kv_load_failure_policy="recompute")}, "kv_load_can_fail"),
        ({"kv_transfer_config": Holder(kv_connector="X", kv_load_failure_policy="new")}, "kv_load_can_fail:unknown"),
        ({"kv_transfer_config": Holder(kv_connector="X")}, "kv_load_can_fail:unknown"),
        ({"model_config__runner_type": "pooling"}, "pooling"),
        ({"model_config__is_diffusion": True}, "diffusion"),
        ({"parallel_config__decode_context_parallel_size": 2}, "dcp"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "pcp"),
        ({"parallel_config__enable_eplb": True}, "dynamic_eplb"),
        ({"additional_config": {"eplb_config": {"dynamic_eplb": True}}}, "dynamic_eplb"),
        ({"additional_config": {"eplb_config": "yes"}}, "dynamic_eplb:unknown"),
        ({"additional_config": 3}, "dynamic_eplb:unknown"),
    ],
)
def test_each_feature_is_read_from_where_vllm_keeps_it(changes, rule):
    assert decide_runner(read(vllm_config(**changes))).reasons == (rule,)


@pytest.mark.parametrize(
    "transfer", [Holder(kv_connector=None), Holder(kv_connector="X", kv_load_failure_policy="fail")]
)
def test_a_connector_whose_failed_loads_end_the_request_rewinds_nothing(transfer):
    assert decide_runner(read(vllm_config(kv_transfer_config=transfer))).source is Source.SCHEDULER


def test_speculation_in_a_synchronous_pipeline_is_refused_before_a_runner_exists():
    config = vllm_config(
        speculative_config=Holder(method="mtp", num_speculative_tokens=1),
        parallel_config__pipeline_parallel_size=2,
        scheduler_config__async_scheduling=False,
    )
    assert decide_runner(read(config)).action is Action.REFUSE


def output(**changes):
    values = {"scheduled_spec_decode_tokens": {}, "has_structured_output_requests": False}
    return Holder(**{**values, **changes})


def test_step_facts():
    runner = read(vllm_config())
    assert decide(runner, step_facts(output(), True)).source is Source.SCHEDULER
    assert decide(runner, step_facts(output(scheduled_spec_decode_tokens={"r": [1]}), True)).reasons == (
        "draft_tokens",
    )
    assert decide(runner, step_facts(output(), False)).reasons == ("counts_rewound",)
    assert decide(runner, step_facts(Holder(), True)).source is Source.DEVICE


def test_facts_are_plain_values():
    facts = read(vllm_config())
    assert deepcopy(facts) == facts
    assert replace(facts, pp_rank=UNKNOWN) != facts
