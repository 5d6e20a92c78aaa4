"""The one order between streams that this package's copies need."""

from __future__ import annotations

from typing import Any


def after_main(stream: Any, main: Any) -> None:
    """Order what follows on `stream` behind the work that `main` holds now: on the device, without the host."""
    stream.wait_stream(main)
