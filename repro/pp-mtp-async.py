"""Pipeline parallel with MTP drafts and asynchronous scheduling: the first rank's host lengths are too long.

Rejected drafts shorten the device's lengths; the host's are corrected only where the rank owns the speculator, and the
first rank does not. Real here: two worker processes with the runner of vllm-ascend in the engine of vLLM. The tiny
model does not declare pipeline support and vLLM's check of it is answered; drafts are an oracle's, right 7 in 10.
"""

# pairs: 0.30.0 0.29.0

from __future__ import annotations

from _show import finish


def main() -> None:
    """Upstream as it is; the kit's hook is the control."""
    from _pipeline import equal, results

    hook = {"enabled": True, "strict": True}
    found = results(
        {"name": "upstream", "hook": None, "async": True},
        {"name": "hook", "hook": hook, "async": True},
    )
    rows = []
    for name, faulty in (("upstream", True), ("hook", False)):
        for rank in found[name].get("ranks", []):
            what = f"{name}: rank {rank['rank']}, rows whose host length is longer than the device's"
            bad = faulty and not rank["owns_speculator"]
            # The number of rows depends on which drafts a step sees; that there are any does not.
            rows.append({"what": what, "expected": 0, "seen": rank["too_long_rows"], "of": rank["rows"], "faulty": bad})
        want = "8 of 8 requests with the reference's tokens"
        rows.append({"what": f"{name}: tokens", "expected": want, "seen": equal(found, name), "faulty": faulty})
    finish("pp-mtp-async", rows)


if __name__ == "__main__":
    main()
