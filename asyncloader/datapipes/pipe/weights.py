"""How often something is drawn.

This file is about the weights that a user gives to sources and to shares.
"""

from __future__ import annotations

import math
from typing import Any


def checked_weight(of: object, weight: Any, *, may_be_0: bool) -> float:
    """Return a finite weight that is large enough; raise TypeError or ValueError otherwise."""
    number = _number(of, weight)
    if not 0 <= number < math.inf or (number == 0 and not may_be_0):
        least = "at least 0" if may_be_0 else "above 0"
        raise ValueError(f"the weight of {of!r} must be finite and {least}, got {weight}")
    return number


def _number(of: object, weight: Any) -> float:
    # Text can be made a number as well, but is none.
    if not isinstance(weight, str | bytes | bytearray | bool):
        try:
            return float(weight)
        except OverflowError:
            raise ValueError(f"the weight of {of!r} is too large; it must fit a float") from None
        except (TypeError, ValueError):
            pass
    raise TypeError(f"the weight of {of!r} must be a number, got {type(weight).__name__}")
