"""The gated recipe of the digits, which notes what its weights are at each commit."""

import os
from pathlib import Path

from gated import train as train_gated
from torch import nn

import ringleader


def train(session: ringleader.Session) -> None:
    """Params: those of the gated recipe, and `notes`: a folder with a file for each process of each `lr`."""
    model = session.model
    notes = Path(session.params["notes"]) / f"{session.params['lr']}-{os.getpid()}"

    def noted(net: nn.Module) -> nn.Module:
        made = model(net)

        def note() -> None:
            with notes.open("a", encoding="utf-8") as file:
                file.write(f"{session.global_step} {ringleader.weights_sha256(made)}\n")

        session.on_commit(note)
        return made

    session.model = noted  # type: ignore[method-assign, assignment]
    train_gated(session)
