"""For programs that pretend to run on another system: see `tests/elsewhere/pretending.py`."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from tests.elsewhere.pretending import VARIABLE, pretend

if VARIABLE in os.environ:
    pretend(os.environ[VARIABLE])
