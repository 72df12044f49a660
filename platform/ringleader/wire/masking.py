"""Masking of a job's secrets in its output, wherever they stand, before it is passed on or cut."""

from collections.abc import Iterable, Sequence
from typing import Any

LEAST_CHARACTERS, MOST_CHARACTERS = 6, 32_768
"""The length of values that are masked: shorter ones stand in ordinary words, too."""
MASK = "***"


def masks_of(values: Iterable[str]) -> list[str]:
    """The texts to black out for these secrets: each value, and each of its lines; longest first."""
    texts = {text for value in values for text in (value, *value.splitlines())}
    # Longest first: masking a secret inside a longer one would leave the rest of that readable.
    return sorted((text for text in texts if sized(text)), key=len, reverse=True)


def masked(told: Any, masks: Sequence[str]) -> Any:
    """The same JSON value with every occurrence of a secret blacked out, in keys too."""
    if isinstance(told, str):
        for text in masks:
            told = told.replace(text, MASK)
        return told
    if isinstance(told, dict):
        return {masked(key, masks): masked(value, masks) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return [masked(value, masks) for value in told]
    return told


def sized(value: str) -> bool:
    return LEAST_CHARACTERS <= len(value) <= MOST_CHARACTERS
