"""Runs the core's tests on this system, or on the one that PENSTOCK_PRETEND names: `python -m tests.elsewhere`."""

import sys

import pytest

from tests.elsewhere.core import CORE

sys.exit(pytest.main(["-p", "tests.elsewhere.plugin", *CORE, *sys.argv[1:]]))
