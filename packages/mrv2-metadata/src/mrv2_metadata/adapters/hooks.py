"""The wrapped methods: each takes what it replaces or wraps, and falls back to it for a runner that is declined."""

from __future__ import annotations

import atexit
import logging
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from mrv2_metadata.adapters.state import ATTRIBUTE, RunnerState
from mrv2_metadata.adapters.twin import DeviceTwin
from mrv2_metadata.adapters.verify import Verifier
from mrv2_metadata.errors import UnsupportedError
from mrv2_metadata.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrv2_metadata.config import Config

logger = logging.getLogger(__name__)
WRITE_EVERY_STEPS = 256


class Metadata:
    """What one worker process shares between its hooks: configuration, counters and the runner being prepared."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.stats = Stats()
        self.current: RunnerState | None = None
        self._reported = False
        atexit.register(self.report)

    def state_of(self, runner: Any) -> RunnerState:
        """The state of `runner`, made at its first step; a declined runner is warned about once."""
        state: RunnerState | None = runner.__dict__.get(ATTRIBUTE)
        if state is None:
            state = RunnerState(runner, self.config, self.stats)
            setattr(runner, ATTRIBUTE, state)
            if state.declined is not None:
                text = f"mrv2-metadata leaves this runner on upstream's own path: {state.declined}"
                if self.config.strict:
                    raise UnsupportedError(f"{text}. Remove `strict` or the feature.")
                logger.warning(text)
            elif self.config.verify != "off":
                state.verifier = Verifier(state, runner)
        return state

    # -- runner -------------------------------------------------------------------------------------------------------
    def copy_to_cpu(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `_copy_num_computed_tokens_to_cpu`."""

        def hooked(runner: Any) -> Any:
            state = self.state_of(runner)
            return original(runner) if state.declined is not None else state.after_postprocess(runner)

        return hooked

    def update_seq_lens(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `_update_seq_lens_cpu`."""

        def hooked(runner: Any, scheduler_output: Any, req_ids: Any) -> Any:
            state = self.state_of(runner)
            if state.declined is not None:
                return original(runner, scheduler_output, req_ids)
            return state.update_lengths(runner, scheduler_output, req_ids)

        return hooked

    def prepare_inputs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `prepare_inputs(scheduler_output[, batch_req_state], batch_desc)`: keeps the index it already holds."""

        def hooked(runner: Any, scheduler_output: Any, *rest: Any, **named: Any) -> Any:
            state = self.state_of(runner)
            if state.declined is not None:
                return original(runner, scheduler_output, *rest, **named)
            state.started_ns = perf_counter_ns()
            held = named.get("batch_req_state", rest[0] if rest else None)
            state.batch_req_state = held if hasattr(held, "idx_mapping_np") else None
            return original(runner, scheduler_output, *rest, **named)

        return hooked

    def prepare_attn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `prepare_attn(input_batch)`: the correction is awaited behind it, and the builders may begin."""

        def hooked(runner: Any, input_batch: Any) -> Any:
            result = original(runner, input_batch)
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
            if self.config.stats_dir is not None and self.stats.counts["steps"] % WRITE_EVERY_STEPS == 0:
                self.write()
            return result

        return hooked

    # -- builder ------------------------------------------------------------------------------------------------------
    def build(self, builder_class: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """For the dense builder's `build`: hands over a query_start_loc that is on the device already.

        Only for the batch that `prepare_attn` has just prepared, told by the addresses of both its arrays: drafts,
        dummy runs and captures bring their own and keep their upload.
        """

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def hooked(
                builder: Any, common_prefix_len: int, common_attn_metadata: Any, *rest: Any, **named: Any
            ) -> Any:
                common = common_attn_metadata
                state = self.current
                if state is None or type(builder) is not builder_class:
                    return original(builder, common_prefix_len, common, *rest, **named)
                host, device = common.query_start_loc_cpu, common.query_start_loc
                if (host.data_ptr(), device.data_ptr()) != state.open_build or device.dtype != host.dtype:
                    self.stats.counts["uploads_kept"] += 1
                    return original(builder, common_prefix_len, common, *rest, **named)
                common.query_start_loc_cpu = DeviceTwin(host, device, state.device, self._upload_avoided)
                try:
                    return original(builder, common_prefix_len, common, *rest, **named)
                finally:
                    common.query_start_loc_cpu = host

            return hooked

        return wrap

    def _upload_avoided(self) -> None:
        self.stats.counts["uploads_avoided"] += 1

    # -- output -------------------------------------------------------------------------------------------------------
    def output_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `AsyncOutput.__init__`: lets this step's snapshot ride on the output's copy."""

        def hooked(output: Any, *args: Any, **named: Any) -> None:
            state = self.current
            verifier = state.verifier if state is not None else None
            if verifier is None or "num_sampled_tokens" not in named:
                return original(output, *args, **named)
            tensor = named["num_sampled_tokens"]
            named["num_sampled_tokens"], pending = verifier.ride(tensor)
            original(output, *args, **named)
            if pending is not None:
                output.num_sampled_tokens = tensor  # the output keeps the device tensor alive, not the stand-in
                verifier.sent(pending, output.copy_event)
                setattr(output, ATTRIBUTE, (verifier, pending))
            return None

        return hooked

    def output_get(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `AsyncOutput.get_output`: compares behind the wait that is there anyway, before tokens are released."""

        def hooked(output: Any) -> Any:
            result = original(output)
            riding = output.__dict__.pop(ATTRIBUTE, None)
            if riding is not None:
                verifier, pending = riding
                verifier.check(pending)
            return result

        return hooked

    # -- figures ------------------------------------------------------------------------------------------------------
    def write(self) -> None:
        """Write the counters to `stats_dir`; a full disk is a warning, not the end of the engine."""
        if self.config.stats_dir is None:
            return
        try:
            self.stats.write(Path(self.config.stats_dir))
        except OSError as error:
            logger.warning("mrv2-metadata: counters not written to %r: %s", self.config.stats_dir, error)

    def report(self) -> None:
        """Log the counters once, at exit, and write them a last time."""
        if self._reported or not self.stats.counts["steps"]:
            return
        self._reported = True
        logger.info("mrv2-metadata at exit: %s", self.stats.line())
        self.write()
