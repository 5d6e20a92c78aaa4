"""The only place that meets vLLM and vllm-ascend: by name, when they are imported. Importing this imports neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable


def after_import(target: str, then: Callable[[], None]) -> None:
    """Call `then` once the module of a hook's target is imported; at once when it is. Never, where it is not installed.

    A process that needs the module imports it soon enough; importing it from here would slow every other process down
    and could meet vLLM half imported.
    """
    wrapt.register_post_import_hook(lambda module: then(), target.partition(":")[0])
