"""The wrappers: `call` is what each replaces or wraps, and what it falls back to for a runner that is declined."""

from __future__ import annotations

import atexit
import logging
import weakref
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from mrv2_metadata.adapters.state import ATTRIBUTE, RunnerState
from mrv2_metadata.adapters.twin import DeviceTwin
from mrv2_metadata.adapters.verify import Verifier
from mrv2_metadata.config import Config
from mrv2_metadata.errors import UnsupportedError
from mrv2_metadata.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs import Installed

Call: TypeAlias = "Callable[..., Any]"
logger = logging.getLogger(__name__)
DENSE_BUILDER = "AscendAttentionMetadataBuilder"
WRITE_EVERY_STEPS = 256
OFF = Config()


class Metadata:
    """What the hooks of one worker process share: the engines that asked, the counters, the runner being prepared."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.current: RunnerState | None = None
        self.installed: list[Installed] = []
        self._engines: list[tuple[weakref.ref[Any], Config]] = []
        self._reported = False
        atexit.register(self.report)

    def admit(self, vllm_config: Any, config: Config) -> None:
        """Let the hooks act on the runner of this engine; another engine of the process may not have asked."""
        self._engines = [(ref, known) for ref, known in self._engines if ref() not in (None, vllm_config)]
        self._engines.append((weakref.ref(vllm_config), config))

    def _config_of(self, vllm_config: Any) -> Config:
        return next((config for ref, config in self._engines if ref() is vllm_config), OFF)

    def state_of(self, runner: Any) -> RunnerState:
        """The state of `runner`, made at its first step; a runner left to upstream is warned about once."""
        state: RunnerState | None = runner.__dict__.get(ATTRIBUTE)
        return state if state is not None else self._make_state(runner)

    def _make_state(self, runner: Any) -> RunnerState:
        config = self._config_of(runner.vllm_config)
        state = RunnerState(runner, config, self.stats)
        setattr(runner, ATTRIBUTE, state)
        if not config.enabled:
            state.declined = "not asked for"
        elif state.declined is not None:
            text = f"mrv2-metadata leaves this runner on upstream's own path: {state.declined}"
            if config.strict:
                raise UnsupportedError(f"{text}. Remove `strict`, or what it names.")
            logger.warning(text)
        elif config.verify != "off":
            state.verifier = Verifier(state, runner)
        return state

    # -- runner -------------------------------------------------------------------------------------------------------
    def copy_to_cpu(self, call: Call, runner: Any) -> Any:
        """For `_copy_num_computed_tokens_to_cpu`."""
        state = self.state_of(runner)
        return call(runner) if state.declined is not None else state.after_postprocess(runner)

    def update_seq_lens(self, call: Call, runner: Any, scheduler_output: Any, req_ids: Any) -> Any:
        """For `_update_seq_lens_cpu`."""
        state = runner.__dict__.get(ATTRIBUTE) or self._make_state(runner)  # not `state_of`: every call shows here
        if state.declined is not None:
            return call(runner, scheduler_output, req_ids)
        return state.update_lengths(runner, scheduler_output, req_ids)

    def prepare_inputs(self, call: Call, runner: Any, scheduler_output: Any, *rest: Any, **named: Any) -> Any:
        """For `prepare_inputs(scheduler_output[, batch_req_state], batch_desc)`: keeps the index it already holds."""
        state = self.state_of(runner)
        if state.declined is None:
            state.started_ns = perf_counter_ns()
            held = named.get("batch_req_state", rest[0] if rest else None)
            state.batch_req_state = held if hasattr(held, "idx_mapping_np") else None
        return call(runner, scheduler_output, *rest, **named)

    def prepare_attn(self, call: Call, runner: Any, input_batch: Any) -> Any:
        """For `prepare_attn(input_batch)`: the correction is awaited behind it, and the builders may begin."""
        result = call(runner, input_batch)
        state = self.state_of(runner)
        if state.declined is not None:
            self.current = None
            return result
        state.finish_correction(runner, input_batch)
        if state.verifier is not None:
            state.verifier.take(runner, input_batch)
        state.open_build = (
            input_batch.query_start_loc_np.__array_interface__["data"][0],
            input_batch.query_start_loc.data_ptr(),
        )
        state.device = runner.device
        self.current = state
        self.stats.prepare.add(perf_counter_ns() - state.started_ns)
        if state.config.stats_dir is not None and self.stats.counts["steps"] % WRITE_EVERY_STEPS == 0:
            self._write(state.config.stats_dir)
        return result

    # -- builder ------------------------------------------------------------------------------------------------------
    def build(
        self, call: Call, builder: Any, common_prefix_len: int, common_attn_metadata: Any, *rest: Any, **named: Any
    ) -> Any:
        """For the dense builder's `build`: hands over a query_start_loc that is on the device already.

        Only for the batch that `prepare_attn` has just prepared, told by the addresses of both its arrays: drafts,
        dummy runs and captures bring their own and keep their upload. A derived builder keeps it too.
        """
        common, state = common_attn_metadata, self.current
        if state is None or type(builder).__qualname__ != DENSE_BUILDER:
            return call(builder, common_prefix_len, common, *rest, **named)
        host, device = common.query_start_loc_cpu, common.query_start_loc
        if (host.data_ptr(), device.data_ptr()) != state.open_build or device.dtype != host.dtype:
            self.stats.counts["uploads_kept"] += 1
            return call(builder, common_prefix_len, common, *rest, **named)
        common.query_start_loc_cpu = DeviceTwin(host, device, state.device, self._upload_avoided)
        try:
            return call(builder, common_prefix_len, common, *rest, **named)
        finally:
            common.query_start_loc_cpu = host

    def _upload_avoided(self) -> None:
        self.stats.counts["uploads_avoided"] += 1

    # -- output -------------------------------------------------------------------------------------------------------
    def output_init(self, call: Call, output: Any, *args: Any, **named: Any) -> None:
        """For `AsyncOutput.__init__`: lets this step's snapshot ride on the output's copy."""
        verifier = self.current.verifier if self.current is not None else None
        if verifier is None:
            call(output, *args, **named)
            return
        tensor = named["num_sampled_tokens"]
        named["num_sampled_tokens"], pending = verifier.ride(tensor)
        call(output, *args, **named)
        if pending is not None:
            output.num_sampled_tokens = tensor  # the output keeps the device tensor alive, not the stand-in
            verifier.sent(pending, output.copy_event)
            setattr(output, ATTRIBUTE, (verifier, pending))

    def output_get(self, call: Call, output: Any) -> Any:
        """For `AsyncOutput.get_output`: compares behind the wait that is there anyway, before tokens are released."""
        result = call(output)
        riding = output.__dict__.pop(ATTRIBUTE, None)
        if riding is not None:
            verifier, pending = riding
            verifier.check(pending)
        return result

    # -- figures ------------------------------------------------------------------------------------------------------
    def _write(self, folder: str) -> None:
        try:
            self.stats.write(Path(folder))
        except OSError as error:  # a full disk must not end the engine
            logger.warning("mrv2-metadata: counters not written to %r: %s", folder, error)

    def report(self) -> None:
        """Log the counters once, at exit, and write them a last time."""
        if self._reported or not self.stats.counts["steps"]:
            return
        self._reported = True
        logger.info("mrv2-metadata at exit: %s", self.stats.line())
        for folder in {config.stats_dir for _, config in self._engines if config.stats_dir is not None}:
            self._write(folder)
