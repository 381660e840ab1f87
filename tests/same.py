from __future__ import annotations

from typing import Any

from penstock.testing import difference


def same(one: Any, other: Any) -> bool:
    return difference(one, other) is None
