"""Write the pages of the claims into docs/claims/ from the packets under evidence/, or check them (`--check`).

Runs where serving-evidence is installed; `nox -s docs` checks, so a page that says something else than its packet
fails the build of the site.
"""

from __future__ import annotations

import subprocess
import sys

from workspace import ROOT


def main(argv: list[str] | None = None) -> int:
    """Exit status of `serving-evidence site`: 2 where a page and a packet differ."""
    words = sys.argv[1:] if argv is None else argv
    command = [sys.executable, "-m", "serving_evidence", "site", "evidence/packets", "--out", "docs/claims"]
    return subprocess.run([*command, "--published", "evidence/published", *words], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
