"""Whether a parameter steps alone as it does together with others, tried out on small stand-ins.

A parameter server that holds one parameter never shows that its optimizer's step goes by the gradients of others, too.
So an optimizer of the program makes a few steps beforehand: copies of it step a few parameters together, and each of
them alone. Weights, states and random streams of the program stay as they are.
"""

import copy
import math
import pickle
import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from ringleader.train.rows.random_streams import Generator, own_generators, resumed_behind
from ringleader.train.state.optimizers.own_attributes import OF_TORCH

MOST_PARAMETERS = 6
MOST_ROWS = 8
"""The bound of each size of a stand-in."""
MOST_BYTES, MOST_OBJECTS = 1 << 20, 500
"""The bounds of what an optimizer has in attributes, of which each copy gets its own."""
SIZES = (0.01, 1.0, 100.0)
"""Of the gradients, step by step: some steps are coupled only where a gradient is large."""
_GLOBAL: list[tuple[str, Generator]] = [
    ("torch", torch.default_generator),
    ("random", random._inst),
    ("numpy", np.random.mtrand._rand),
]
_ATOMS = (str, bytes, int, float, complex, type(None), type, torch.dtype)


def is_coupled(optimizer: Optimizer) -> bool:
    """Whether some of its parameters step in another way beside others than alone. False also where that cannot be
    told: its steps draw, raise, or go by more than can be copied."""
    chosen = _chosen(optimizer.param_groups)
    if len(chosen) < 2 or not _is_small(optimizer) or any(own_generators(_own(optimizer))):
        return False
    # Between calls a mode notes which weights the program touches.
    with resumed_behind(_GLOBAL), _disable_current_modes(), torch.no_grad():
        before = _stand()
        try:
            return _differs(optimizer, chosen) and _stand() == before
        except Exception:  # code of the program may do anything on stand-ins
            return False


def _differs(optimizer: Optimizer, chosen: Sequence[nn.Parameter]) -> bool:
    everybody = range(len(chosen))
    together = list(_steps(optimizer, chosen, everybody, lambda step: ()))
    for number in everybody:
        # On a server the others' weights are those that their servers have made.
        for step, weights in enumerate(_steps(optimizer, chosen, [number], together.__getitem__)):
            if not _same(weights[number], together[step][number]):
                return True
    return False


def _steps(
    optimizer: Optimizer,
    chosen: Sequence[nn.Parameter],
    active: Collection[int],
    given: Callable[[int], Sequence[Tensor]],
) -> Iterator[list[Tensor]]:
    """The weights behind each of some steps of a copy, in which these parameters have gradients.

    Args:
        given: the weights that the others have behind a step.
    """
    weights = [nn.Parameter(_waves(p, number, 0.1)) for number, p in enumerate(chosen)]
    copied = _copied(optimizer, dict(zip(chosen, weights, strict=True)))
    for step, size in enumerate(SIZES):
        for number in active:
            weights[number].grad = _waves(weights[number], number + step + 1, size)
        copied.step()
        for number, weight in enumerate(given(step)):
            if number not in active:
                weights[number].copy_(weight)
        yield [weight.detach().clone() for weight in weights]


def _waves(parameter: Tensor, number: int, size: float) -> Tensor:
    """Values for a stand-in, other ones for each number."""
    shape = [min(length, MOST_ROWS) for length in parameter.shape]
    places = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.cos(places * (0.7 + 0.1 * number) + number).mul_(size).reshape(shape).to(parameter.dtype)


def _copied(optimizer: Optimizer, stand_ins: dict[nn.Parameter, nn.Parameter]) -> Optimizer:
    """A copy without hooks and without states, over the stand-ins alone."""
    spare = nn.Parameter(torch.zeros(1, dtype=torch.float32))
    known: dict[int, Any] = {
        id(p): stand_ins.get(p, spare) for group in optimizer.param_groups for p in group["params"]
    }
    for value in (optimizer, *vars(optimizer).values()):
        if isinstance(value, Optimizer):
            known[id(value.state)] = defaultdict(dict)
        elif isinstance(value, nn.Module):
            known[id(value)] = nn.ParameterList(stand_ins[p] for p in value.parameters() if p in stand_ins)
    groups = []
    for group in optimizer.param_groups:
        params = [stand_ins[p] for p in group["params"] if p in stand_ins]
        if params:
            options = {name: copy.deepcopy(v, known) for name, v in group.items() if name != "params"}
            # A schedule may begin with a rate of zero, with which nothing shows.
            known[id(group)] = options | {"params": params} | ({"lr": 0.1} if options.get("lr") == 0 else {})
            groups.append(known[id(group)])
    known[id(optimizer.param_groups)] = groups
    made = object.__new__(type(optimizer))
    Optimizer.__setstate__(made, copy.deepcopy(_own(optimizer), known))
    return made


def _own(optimizer: Optimizer) -> dict[str, Any]:
    """Its attributes, but for hooks, and wrappers of its methods."""
    return {name: v for name, v in vars(optimizer).items() if name == "defaults" or name not in OF_TORCH}


def _chosen(groups: Sequence[dict[str, Any]]) -> list[nn.Parameter]:
    """Two parameters of each kind in each group, as optimizers treat matrices and vectors in other ways; the first and
    the last of them."""
    kinds: dict[tuple[int, bool], list[nn.Parameter]] = defaultdict(list)
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            kind = kinds[number, parameter.ndim > 1]
            if len(kind) < 2 and parameter.requires_grad and parameter.dtype.is_floating_point:
                kind.append(parameter)
    found = [parameter for kind in kinds.values() for parameter in kind]
    half = MOST_PARAMETERS // 2
    return found if len(found) <= MOST_PARAMETERS else [*found[:half], *found[-half:]]


def _is_small(optimizer: Optimizer) -> bool:
    """Whether what it has beside its parameters and states takes no time and no memory to copy."""
    seen = {id(p) for group in optimizer.param_groups for p in group["params"]}
    known = [v for v in (optimizer, *vars(optimizer).values()) if isinstance(v, Optimizer)]
    seen |= {id(part) for each in known for part in (each.state, each.param_groups)}
    left: deque[Any] = deque(v for v in _own(optimizer).values() if not isinstance(v, nn.Module))
    objects = size_bytes = 0
    while left:
        value = left.popleft()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        objects += 1
        if isinstance(value, Tensor | np.ndarray):
            size_bytes += value.nbytes
        if objects > MOST_OBJECTS or size_bytes > MOST_BYTES:
            return False
        left += islice(_inside(value), MOST_OBJECTS + 1)
    return True


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | deque):
        yield from value
    elif not isinstance(value, Tensor | np.ndarray) and not callable(value):
        yield from getattr(value, "__dict__", {}).values()


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())


def _stand() -> bytes:
    """The states of the global random streams."""
    return pickle.dumps((torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()))
