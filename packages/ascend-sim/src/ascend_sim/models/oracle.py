"""Oracle drafts: a runner's own speculator runs, then its drafts are replaced from a known continuation.

A random draft model is almost never right, so the interesting states of speculation (some drafts accepted, some
rejected) do not occur. Here the share of right drafts is chosen. Whether a draft is right depends on the seed, the
prompt and the position alone, never on batch order, scheduling or preemption; a wrong draft always differs from the
reference.

Interface to a worker: the environment variable `ASCEND_SIM_ORACLE` names a JSON file (see `write`); the worker calls
`attach_from_environment(runner)` after `load_model`. Requests whose prompt is not in the file keep their own drafts.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_sim.models.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ENVIRONMENT = "ASCEND_SIM_ORACLE"
VERSION = 1


class OracleError(ModelError):
    """The oracle's file or arguments are wrong, or the runner has no speculator to replace drafts of."""


def prompt_key(prompt: Sequence[int]) -> str:
    """Return the key of a prompt's token ids: 16 hex digits."""
    return hashlib.sha256(",".join(str(int(token)) for token in prompt).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Oracle:
    """Reference continuations by prompt key, and the share of drafts that equal them (0 to 1)."""

    requests: Mapping[str, Sequence[int]]
    acceptance: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.acceptance <= 1.0:
            raise OracleError(f"acceptance={self.acceptance!r} is not a share: give a number from 0 to 1")

    def drafts(self, key: str, position: int, count: int, vocab_size: int) -> list[int] | None:
        """Return up to `count` drafts for the output tokens from `position` on; None for a prompt that is not known.

        Fewer than `count` where the reference ends: the caller keeps the speculator's drafts there.
        """
        reference = self.requests.get(key)
        if reference is None or position < 0:
            return None
        return [
            token if self._right(key, place) else (token + 1) % vocab_size
            for place, token in enumerate(reference[position : position + count], position)
        ]

    def _right(self, key: str, place: int) -> bool:
        return random.Random(f"{self.seed}:{key}:{place}").random() < self.acceptance


def write(
    path: str | Path,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    *,
    acceptance: float,
    seed: int = 0,
) -> None:
    """Write the file that `ASCEND_SIM_ORACLE` names: one continuation (output token ids) for each prompt, in order.

    Raises:
        OracleError: as many prompts as continuations are needed; `acceptance` is not a share.
    """
    if len(prompts) != len(continuations):
        raise OracleError(f"{len(prompts)} prompts but {len(continuations)} continuations: give one for each prompt")
    pairs = zip(prompts, continuations, strict=True)
    oracle = Oracle({prompt_key(prompt): [int(t) for t in tokens] for prompt, tokens in pairs}, acceptance, seed)
    content = {"version": VERSION, "acceptance": acceptance, "seed": seed, "requests": oracle.requests}
    Path(path).write_text(json.dumps(content) + "\n", "utf-8")


def read(path: str | Path) -> Oracle:
    """Return the oracle of that file.

    Raises:
        OracleError: the file is missing or a field is not what `write` writes; the message names it.
    """
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OracleError(f"{ENVIRONMENT}={str(path)!r} cannot be read: {error}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise OracleError(f"{str(path)!r}: version={version!r}, expected {VERSION}: write it with `oracle.write`")
    requests = content.get("requests")
    if not isinstance(requests, dict) or not all(_are_tokens(tokens) for tokens in requests.values()):
        raise OracleError(f"{str(path)!r}: `requests` must map a prompt key to a list of token ids, got {requests!r}")
    for field, kind in (("acceptance", (int, float)), ("seed", int)):
        if not isinstance(content.get(field), kind) or isinstance(content[field], bool):
            raise OracleError(f"{str(path)!r}: `{field}` must be a number, got {content.get(field)!r}")
    return Oracle(requests, content["acceptance"], content["seed"])


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, int) and item >= 0 for item in value)


def attach_from_environment(runner: Any) -> bool:
    """Attach the oracle that `ASCEND_SIM_ORACLE` names, on a rank that has a speculator; return whether it did."""
    path = os.environ.get(ENVIRONMENT)
    if not path or getattr(runner, "speculator", None) is None:
        return False
    attach(runner, read(path))
    return True


def attach(runner: Any, oracle: Oracle) -> None:
    """Let `runner.speculator.propose` return the oracle's drafts, [requests, draft tokens], for the prompts it knows.

    Only the speculator object is touched. Raises `OracleError` when the runner has none.
    """
    speculator = getattr(runner, "speculator", None)
    if speculator is None:
        raise OracleError("the runner has no speculator: give the engine a speculative configuration")
    speculator.propose = _wrap(speculator.propose, runner, oracle)


def _wrap(propose: Callable[..., Any], runner: Any, oracle: Oracle) -> Callable[..., Any]:
    def propose_oracle(*args: Any, **kwargs: Any) -> Any:
        proposed = propose(*args, **kwargs)
        if kwargs.get("dummy_run"):
            return proposed
        batch = kwargs["input_batch"] if "input_batch" in kwargs else args[0]
        drafts = proposed.clone()
        # A numpy view, because `.item()` and `.tolist()` are counted as the runner's own reads of device memory.
        rows = drafts.numpy()
        for row, request in enumerate(batch.req_ids):
            known = _known(runner.req_states, request, oracle, rows.shape[1])
            if known:
                rows[row, : len(known)] = known
        return drafts

    return propose_oracle


def _known(states: Any, request: str, oracle: Oracle, count: int) -> list[int] | None:
    """Return the oracle's drafts after the tokens that the request has now, the ones just sampled among them."""
    slot = states.req_id_to_index.get(request)
    if slot is None:
        return None
    prompt_length = int(states.prompt_len.np[slot])
    prompt = states.all_token_ids.gpu[slot, :prompt_length].numpy()
    position = int(states.total_len.gpu.numpy()[slot]) - prompt_length
    return oracle.drafts(prompt_key(prompt), position, count, states.vocab_size)
