"""The pairs a package was verified with, and functions that are no longer as they were read."""

from vllm_pairs import load_pairs, reliance
from vllm_pairs.contract import ast_sha256


def test_a_package_is_verified_with_the_pairs_that_have_its_row():
    pairs = {pair.id: pair for pair in load_pairs().pairs}
    known = reliance.verified_with("ascend-sim")
    assert known
    assert all(reliance.unverified(pairs[name], "ascend-sim") is None for name in known)
    assert "was not verified with this package" in reliance.unverified(pairs[known[0]], "nobody's")
    assert reliance.verified_with("nobody's") == ()


def test_only_an_optional_function_may_be_missing():
    gone, here = "vllm_pairs.pairs:gone", "vllm_pairs.pairs:load_pairs"
    read = (ast_sha256(load_pairs),)
    assert reliance.changed_reliance({here: read}, {gone: read}) is None
    assert reliance.changed_reliance({here: read, gone: read}).startswith(f"{gone}: ")
    assert f"expected {'0' * 64}" in reliance.changed_reliance({}, {here: ("0" * 64,)})
