"""The recipe of the digits, whose steps wait at gates for a test."""

from typing import Any

from pace import keep_pace
from torch import Tensor

import ringleader
from ringleader_jobs import digits


def train(session: ringleader.Session) -> None:
    """Params: those of the recipe, and `gates`."""
    step = session.step

    def gated(loss: Tensor, **values: Any) -> None:
        keep_pace(session)
        step(loss, **values)

    session.step = gated  # type: ignore[method-assign]
    digits.train(session)
