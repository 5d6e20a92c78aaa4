"""The helpers beside the tests are importable from them, wherever the tests were copied to."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
