"""Put the hooks in for one engine, all or none, or say why not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm_pairs import Hook, HookRefused, current_pair, install, reliance

from mrv2_metadata.adapters.contracts import BUILDER, OUTPUT, RELIED_ON, RUNNER, WRAPPED
from mrv2_metadata.adapters.facts import runner_facts
from mrv2_metadata.adapters.hooks import Metadata
from mrv2_metadata.authority import Action, decide_runner, explain
from mrv2_metadata.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm_pairs import Pair

    from mrv2_metadata.config import Config

logger = logging.getLogger(__name__)
PACKAGE = "mrv2-metadata"
# A guard wraps the same methods from outside: it must see the lengths after this package has settled them.
ORDER = 10
_metadata: Metadata | None = None


def metadata() -> Metadata | None:
    """What the hooks of this process share, or None where none was ever enabled."""
    return _metadata


def hooks_of(shared: Metadata, verify: bool, pairs: tuple[str, ...]) -> list[Hook]:
    """The hooks, with the two on the output only where something is verified."""
    wrappers: dict[str, Any] = {
        f"{RUNNER}._copy_num_computed_tokens_to_cpu": shared.copy_to_cpu,
        f"{RUNNER}._update_seq_lens_cpu": shared.update_seq_lens,
        f"{RUNNER}.prepare_inputs": shared.prepare_inputs,
        f"{RUNNER}.prepare_attn": shared.prepare_attn,
        f"{BUILDER}.build": shared.build,
    }
    if verify:
        wrappers[f"{OUTPUT}.__init__"] = shared.output_init
        wrappers[f"{OUTPUT}.get_output"] = shared.output_get
    return [
        Hook(
            name=f"mrv2_metadata.{target.rpartition('.')[2].strip('_')}",
            target=target,
            wrapper=wrapper,
            ast_sha256=WRAPPED[target],
            order=ORDER,
            pairs=pairs,
            hot=True,
        )
        for target, wrapper in wrappers.items()
    ]


def changed_reliance() -> str | None:
    """The first function that a hook depends on, wraps nothing of, and that is not as it was read; None: all are."""
    return reliance.changed_reliance(RELIED_ON)


def _unverified(pair: Pair) -> str | None:
    return reliance.unverified(pair, PACKAGE)


def _why_not(pair: Pair) -> str | None:
    if (unverified := _unverified(pair)) is not None:
        return unverified
    changed = changed_reliance()
    return f"what the hooks rely on has changed in {changed}" if changed is not None else None


def disable() -> None:
    """Take the hooks of this process off again, whatever engines asked for them; their counters stay."""
    if _metadata is not None:
        for installed in _metadata.installed:
            installed.remove()
        _metadata.installed.clear()


def enable(config: Config, vllm_config: Any) -> bool:
    """Put the hooks in for the engine of `vllm_config`; True when they are in.

    Raises UnsupportedError for a combination that must not start, and where `strict` asks for it. Otherwise what the
    hooks cannot do is one warning, and upstream's own path is left untouched.
    """
    global _metadata
    decision = decide_runner(runner_facts(vllm_config, config))
    if decision.action is Action.REFUSE:
        raise UnsupportedError(
            f"mrv2-metadata refuses to start: {explain(decision.reasons)}. Change the configuration."
        )
    pair = current_pair()
    why = explain(decision.reasons) if decision.action is Action.DECLINE else _why_not(pair)
    if why is None:
        shared = _metadata if _metadata is not None else Metadata()
        try:
            shared.installed.append(install(hooks_of(shared, config.verify != "off", reliance.verified_with(PACKAGE))))
        except HookRefused as refused:
            why = str(refused)
        else:
            _metadata = shared
            shared.admit(vllm_config, config)
            return True
    text = f"mrv2-metadata is not in place: {why}"
    if config.strict:
        raise UnsupportedError(f"{text}. Remove `strict`, or what it names.")
    logger.warning("%s. Upstream's own path runs.", text)
    return False
