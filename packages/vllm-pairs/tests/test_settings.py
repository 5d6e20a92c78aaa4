"""Fields of a package's key: what is right is read, what is wrong is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_pairs.settings import FieldReader

if TYPE_CHECKING:
    from collections.abc import Callable


class RefusedError(ValueError):
    """The reading package's own error."""


READ = FieldReader("our_key", RefusedError)


def test_right_values_are_read() -> None:
    assert READ.fields('{"on": true}', ["on", "size"]) == READ.fields({"on": True}, ["on"]) == {"on": True}
    assert READ.boolean("on", False) is False
    assert READ.whole("size", 3, 3, 3) == READ.whole("size", 3, 1) == 3
    assert READ.one_of("mode", "log", ("raise", "log")) == "log"
    assert READ.path("folder", None) is None
    assert READ.path("folder", "a") == "a"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: READ.fields("{", ["on"]), r"^our_key is not JSON \(.* at character 1\), got '\{'$"),
        (lambda: READ.fields([], ["on"]), r'^our_key must be an object such as \{"enabled": true\}, got \[\]$'),
        (lambda: READ.fields({"of": 1}, ["on", "size"]), "^our_key has no key 'of'; known keys: on, size$"),
        (lambda: READ.boolean("on", 1), "^our_key.on must be true or false, got 1$"),
        (lambda: READ.whole("size", True, 0), "^our_key.size must be a whole number >= 0, got True$"),
        (
            lambda: READ.whole("size", 4, 1, 3, "rows"),
            "^our_key.size must be a whole number of rows from 1 to 3, got 4$",
        ),
        (lambda: READ.whole("size", 1.5, 1), "whole number >= 1, got 1.5$"),
        (lambda: READ.one_of("mode", ["log"], ("raise", "log")), r"mode must be one of raise, log, got \['log'\]$"),
        (lambda: READ.path("folder", ""), "folder must be the path of a folder or null, got ''$"),
        (lambda: READ.path("folder", 3, "a path"), "folder must be a path or null, got 3$"),
    ],
)
def test_wrong_values_are_refused_by_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        call()
