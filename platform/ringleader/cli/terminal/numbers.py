"""Numbers as arguments of commands: finite ones in a range, spans of time with a unit, and limits."""

import re
from math import inf, isfinite
from typing import Any

import click

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class FiniteRange(click.FloatRange):
    """A number in a range. Click's own lets `nan` through any range, as nothing is greater than it, or smaller."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


SECONDS = FiniteRange(min=0)


def span_s(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Parse a span such as `90d`, into seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,12})([smhd])", text)
    if match is None:
        raise click.BadParameter("expected a number with a unit s, m, h or d, for example 90d.")
    return float(int(match[1]) * _SECONDS[match[2]])


def limit_of(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Parse a number, or `none` for no limit, which is infinity here."""
    if text is None or text == "none":
        # None means that the option was not given.
        return None if text is None else inf
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < inf:
        raise click.BadParameter("expected a number of at least 0, or none for no limit.")
    return number


def sent_limit(number: float) -> int | float | None:
    """The limit as the control plane takes it: workers and GPUs are whole numbers, no limit is None."""
    if number == inf:
        return None
    return int(number) if number.is_integer() else number
