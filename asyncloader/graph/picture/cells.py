"""How wide texts are.

This file is about cells: the places of a fixed width that a text takes on a screen.
"""

from __future__ import annotations

import unicodedata


def cells(text: str) -> int:
    """Return how many places of a fixed width a text takes, at most.

    >>> cells("map"), cells("写真")
    (3, 4)
    """
    return sum(_cells_of(character) for character in text)


def shortened(text: str, limit: int) -> str:
    """Return a text that takes ``limit`` places at most, without its middle if need be.

    A function or a path tells most at its ends.

    >>> shortened("open_files('/data/of/many/years/part-0001.tar')", 31)
    "open_files('/da…part-0001.tar')"
    """
    if cells(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{_beginning(text, half)}…{_beginning(text[::-1], half)[::-1]}"


def _beginning(text: str, limit: int) -> str:
    taken = 0
    for place, character in enumerate(text):
        taken += _cells_of(character)
        if taken > limit:
            return text[:place]
    return text


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
