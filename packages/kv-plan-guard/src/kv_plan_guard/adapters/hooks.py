"""The wrappers. Each wraps a boundary of the runner and replaces nothing; an unguarded runner passes through."""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from vllm_pairs import Hook, HookRefused, install

from kv_plan_guard.adapters.contracts import OUTPUT, POOLING_OUTPUT, RUNNER
from kv_plan_guard.adapters.state import ATTRIBUTE, RunnerGuard
from kv_plan_guard.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kv_plan_guard.config import Config

Call: TypeAlias = "Callable[..., Any]"
logger = logging.getLogger(__name__)
# Outside of hooks that change what is read: the guard must see their result (mrv2-metadata has 10).
ORDER: Final = 0


class Hooks:
    """What the hooks of one worker process share: which engines asked, and the runner whose step is open."""

    def __init__(self, pair: str, pairs: tuple[str, ...]) -> None:
        self.pair = pair
        self.pairs = pairs
        self.current: RunnerGuard | None = None
        self._engines: list[tuple[weakref.ref[Any], Config]] = []
        self._guards: weakref.WeakSet[RunnerGuard] = weakref.WeakSet()
        self._by_model_state: weakref.WeakKeyDictionary[Any, RunnerGuard] = weakref.WeakKeyDictionary()
        atexit.register(self.finish)

    def admit(self, vllm_config: Any, config: Config) -> None:
        """Guard the runner of this engine; another engine of the process may not have asked."""
        self._engines = [(ref, known) for ref, known in self._engines if ref() not in (None, vllm_config)]
        self._engines.append((weakref.ref(vllm_config), config))

    def hooks(self) -> list[Hook]:
        """The hooks whose targets are known before a runner exists."""
        wrappers: dict[str, Any] = {
            f"{RUNNER}.initialize_kv_cache": self.initialize_kv_cache,
            f"{RUNNER}.execute_model": self.execute_model,
            f"{OUTPUT}.__init__": self.output_init,
            f"{OUTPUT}.get_output": self.output_get,
            f"{POOLING_OUTPUT}.__init__": self.pooling_init,
            f"{POOLING_OUTPUT}.get_output": self.output_get,
        }
        return [self._hook(target, wrapper) for target, wrapper in wrappers.items()]

    def _hook(self, target: str, wrapper: Any) -> Hook:
        name = f"kv_plan_guard.{target.rpartition(':')[2]}"
        return Hook(name=name, target=target, wrapper=wrapper, order=ORDER, pairs=self.pairs, hot=True)

    # -- runner -------------------------------------------------------------------------------------------------------
    def initialize_kv_cache(self, call: Call, runner: Any, *args: Any, **named: Any) -> Any:
        """The caches exist behind this: declare their layout, or refuse to start."""
        result = call(runner, *args, **named)
        config = next((config for ref, config in self._engines if ref() is runner.vllm_config), None)
        if config is None or named.get("is_profiling") or (len(args) > 1 and args[1] is True):
            return result
        self.attach(runner, config)
        return result

    def attach(self, runner: Any, config: Config) -> RunnerGuard:
        """Guard a runner from its next step on; it must hold no request."""
        guard = RunnerGuard(runner, config, self.pair, _can_pin())
        self._hook_model_state(runner.model_state)
        setattr(runner, ATTRIBUTE, guard)
        self._by_model_state[runner.model_state] = guard
        self._guards.add(guard)
        logger.info(
            "kv-plan-guard: %s, pair %s, action %s, every %d step(s), groups %s",
            guard.rank.text,
            self.pair,
            config.action,
            config.every,
            ", ".join(f"{group.kind} block {group.block_size}" for group in guard.layout.groups),
        )
        return guard

    def detach(self, runner: Any) -> None:
        """Guard a runner no longer."""
        runner.__dict__.pop(ATTRIBUTE, None)
        self._by_model_state.pop(runner.model_state, None)
        self.current = None

    def _hook_model_state(self, model_state: Any) -> None:
        """The builders' caller is a class that the model chooses, so its hook goes in with the first runner of it."""
        cls = type(model_state)
        if "<locals>" in cls.__qualname__:
            raise UnsupportedError(f"kv-plan-guard cannot hook {cls!r}: it is defined inside a function")
        try:
            install([self._hook(f"{cls.__module__}:{cls.__qualname__}.prepare_attn", self.prepare_attn)])
        except HookRefused as refused:
            raise UnsupportedError(f"kv-plan-guard cannot see the attention metadata: {refused}") from refused

    def execute_model(self, call: Call, runner: Any, scheduler_output: Any, *args: Any, **named: Any) -> Any:
        """A step: its decision is taken before the runner sees it. Dummy runs are no steps."""
        guard: RunnerGuard | None = runner.__dict__.get(ATTRIBUTE)
        if guard is None or named.get("dummy_run") or (len(args) > 1 and args[1] is True):
            return call(runner, scheduler_output, *args, **named)
        self.current = guard
        guard.begin(scheduler_output)
        try:
            result = call(runner, scheduler_output, *args, **named)
        except Exception as error:
            guard.fail(error)
            raise
        guard.end_forward()
        return result

    def prepare_attn(
        self,
        call: Call,
        model_state: Any,
        input_batch: Any,
        cudagraph_mode: Any,
        block_tables: Any,
        slot_mappings: Any,
        *args: Any,
        **named: Any,
    ) -> Any:
        """The last moment before the forward, and the first at which the final metadata exists."""
        metadata = call(model_state, input_batch, cudagraph_mode, block_tables, slot_mappings, *args, **named)
        guard = self._by_model_state.get(model_state)
        if guard is not None and guard.open is not None:
            guard.plan(input_batch, metadata, block_tables, slot_mappings)
        return metadata

    # -- output -------------------------------------------------------------------------------------------------------
    def output_init(self, call: Call, output: Any, *args: Any, **named: Any) -> None:
        """For `AsyncOutput.__init__`: lets this step's snapshot ride on the output's copy."""
        guard = self.current
        if guard is None or guard.open is None:
            call(output, *args, **named)
            return
        tensor = named["num_sampled_tokens"]
        named["num_sampled_tokens"], record = guard.carry(tensor)
        call(output, *args, **named)
        output.num_sampled_tokens = tensor  # the output keeps the device tensor alive, not the stand-in
        if record is not None:
            guard.carried(record, output)

    def pooling_init(self, call: Call, output: Any, *args: Any, **named: Any) -> None:
        """For `AsyncPoolingOutput.__init__`, whose copies depend on what the pooler returned and cannot be joined."""
        guard = self.current
        record = guard.carry_on_main() if guard is not None and guard.open is not None else None
        call(output, *args, **named)
        if guard is not None and record is not None:
            guard.carried(record, output)

    def output_get(self, call: Call, output: Any) -> Any:
        """For `get_output`: audits behind the wait that is there anyway, before anything is released."""
        result = call(output)
        carried = output.__dict__.pop(ATTRIBUTE, None)
        if carried is not None:
            guard, record = carried
            guard.read_output(record)
        return result

    # -- the end ------------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Log what was covered, once per guard."""
        for guard in list(self._guards):
            guard.finish()


def _can_pin() -> bool:
    from vllm.utils.platform_utils import is_pin_memory_available

    return bool(is_pin_memory_available())
