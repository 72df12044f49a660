"""Attributes that a program's own optimiser carries from step to step outside its state, by the text of its `step`."""

import ast
import inspect
import textwrap
from collections.abc import Iterator

from torch.optim import Optimizer

from ringleader.parsing import parse
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.source.current_line import BELOW
from ringleader.train.source.statement_order import binds, first

HOW = "is carried from one step of the optimiser to the next, but is not in its state_dict"
CURE = (
    "keep it in self.state[parameter], as torch's own optimisers do, or in a parameter group: plain attributes are "
    "lost in a worker that joins and after a pause"
)


def carried_by(optimizer: Optimizer) -> Iterator[VariableFinding]:
    """Attributes that `step` changes and reads before it has set them. A `state_dict` of its own may well hold them."""
    kind = type(optimizer)
    step = inspect.unwrap(kind.step)  # torch puts a wrapper around it
    # A `step` that is no function has no text: it is passed over as torch's own are.
    file = step.__code__.co_filename if inspect.isfunction(step) else BELOW[0]
    if file.startswith(BELOW) or kind.state_dict is not Optimizer.state_dict:
        return
    try:
        lines, begin = inspect.getsourcelines(step)
        function = parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError, IndexError):
        return
    assert isinstance(function, ast.FunctionDef)
    attributes = [
        n for n in ast.walk(function) if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"
    ]
    for name in dict.fromkeys(n.attr for n in attributes if isinstance(n.ctx, ast.Store)):
        added = [
            n.lineno
            for n in ast.walk(function)
            if isinstance(n, ast.AugAssign) and binds(n.target, f".{name}")
        ]
        reads = {n.lineno for n in attributes if n.attr == name and isinstance(n.ctx, ast.Load)} | set(added)
        read = first(function.body, f".{name}", reads)
        if read:
            place = f"{file.rpartition('/')[2]}:{begin + read - 1}"
            yield VariableFinding(f"{kind.__name__}.{name}", place, CURE, HOW)
