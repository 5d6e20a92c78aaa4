"""The hash must not see how code is written, and must see what it does."""

from textwrap import dedent

import pytest
from vllm_pairs import contract
from vllm_pairs.errors import ContractError

BASE = """
    def f(self, rows, limit=8):
        total = 0
        for row in rows:
            total += row if row < limit else limit
        return total
"""


@pytest.fixture
def hash_of(make_module):
    count = iter(range(1000))

    def compute(source):
        return contract.ast_sha256(make_module(f"contract_{next(count)}", source).f)

    return compute


@pytest.mark.parametrize(
    "same",
    [
        "def f(self, rows, limit=8):\n    # why\n    total = 0\n\n    for row in rows:\n"
        "        total += (row if row < limit\n                  else limit)\n    return total\n",
        "def f(self, rows, limit=8):\n    '''Says what it is.'''\n" + "\n".join(dedent(BASE).splitlines()[2:]),
        "def f(self, rows: list[int], limit: int = 8) -> int:\n    total: int = 0\n"
        + "\n".join(dedent(BASE).splitlines()[3:]),
        "def f(self, rows, limit=8):\n    total = 0\n    row: int\n" + "\n".join(dedent(BASE).splitlines()[3:]),
    ],
    ids=["comments and layout", "docstring", "annotations", "bare annotation"],
)
def test_writing_does_not_change_the_hash(hash_of, same):
    assert hash_of(same) == hash_of(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("row < limit", "row <= limit"),
        ("total = 0", "total = 1"),
        ("total = 0", "total = 0.0"),
        ("total = 0", "total = False"),
        ("total += row", "total -= row"),
        ("return total", "return"),
        ("limit=8", "limit=9"),
        ("limit=8", "*, limit=8"),
        ("def f", "@staticmethod\n    def f"),
        ("total = 0", "total = 0\n        'not a docstring'"),
    ],
)
def test_behaviour_changes_the_hash(hash_of, old, new):
    assert old in BASE
    assert hash_of(BASE.replace(old, new)) != hash_of(BASE)


def test_two_functions_that_differ_only_in_a_dict_unpacking_differ(hash_of):
    assert hash_of("def f(a):\n    return {**a, 'b': 1}") != hash_of("def f(a):\n    return {a: a, 'b': 1}")


def test_the_hash_is_the_same_on_every_python(hash_of):
    """Pinned: tables of accepted hashes are shared by environments of different Python versions."""
    assert hash_of(BASE) == "b35f11efcb4f40da164ebc020192d08a2ab04a6b9b9e2b0e2a17a3e45a9ba580"


def test_signature_without_annotations_and_without_addresses(make_module):
    module = make_module(
        "contract_signature", "MARK = object()\ndef f(self, a: int, *, b: str = 'x', c=MARK) -> None: ..."
    )
    assert contract.signature_text(module.f) == "(self, a, *, b='x', c=<object object>)"


def test_no_source_is_said_clearly():
    with pytest.raises(ContractError, match="no Python source"):
        contract.ast_sha256(len)


def test_a_lambda_has_no_contract(make_module):
    with pytest.raises(ContractError, match="def statement"):
        contract.ast_sha256(make_module("contract_lambda", "f = lambda a: a").f)


def test_runtime_wrapper_is_seen_and_a_decorator_in_the_source_is_not(make_module):
    module = make_module(
        "contract_wrapped",
        """
        import functools
        def deco(g):
            @functools.wraps(g)
            def inner(*a): return g(*a)
            return inner
        @deco
        def decorated(x): return x
        def plain(x): return x
        patched = deco(plain)
        """,
    )
    assert contract.runtime_wrapper(module.plain) is None
    assert contract.runtime_wrapper(module.decorated) is None
    assert "contract_wrapped.py" in contract.runtime_wrapper(module.patched)
