"""The test doubles of this folder can be imported by the tests, from wherever they are run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
