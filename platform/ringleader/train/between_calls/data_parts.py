"""The parts of a data set that say which rows it has: the numbers of a subset, tensors, lists of files.

All members believe that a row's number means the same row everywhere. A split that is drawn without a seed, or a folder
that is listed without being sorted, gives each of them other rows, and no variable shows it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from ringleader.program_text.current_line import BELOW
from ringleader.program_text.dataset_caches import changed_in_reads, file_of
from ringleader.program_text.loop_bodies import text_of
from ringleader.train.between_calls.objects.program_objects import attributes_of

MOST_DEPTH = 4
SMALL_BYTES = 1 << 20
ENDS = 64
"""The rows that are read from each end of a larger tensor or array."""
_PLAIN = (str, bytes, int, float, list, tuple, dict, Tensor, np.ndarray)


def data_parts(dataset: Any, names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """The parts with their names, after that of the data set; of large ones the ends.

    Args:
        names: of the program's variables, by the identity of what they hold.
    """
    for name, part in whole_parts(dataset, names):
        of_tensors = isinstance(part, tuple) and name.endswith(".tensors")
        yield name, [_ends(tensor) for tensor in part] if of_tensors else _ends(part)


def whole_parts(
    dataset: Any, names: Mapping[int, str], name: str = "data set", depth: int = MOST_DEPTH
) -> Iterator[tuple[str, Any]]:
    """The parts themselves, as in `data_parts`.

    Args:
        name: what the data set is called where it is in none of the variables.
    """
    if depth == 0:
        return
    name = names.get(id(dataset), name)
    match dataset:
        case Subset():
            yield f"{name}.indices", dataset.indices
            yield from whole_parts(dataset.dataset, names, f"{name}.dataset", depth - 1)
        case TensorDataset():
            yield f"{name}.tensors", dataset.tensors
        case ConcatDataset():
            for number, part in enumerate(dataset.datasets):
                yield from whole_parts(part, names, f"{name}.datasets[{number}]", depth - 1)
        case list() | tuple() | Tensor() | np.ndarray():
            yield name, dataset
        case _:
            yield from _attributes(dataset, names, name, depth)


def _attributes(dataset: Any, names: Mapping[int, str], name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Those of a program's own class that have a say in what its rows are, and that reading a row does not change."""
    kind: Any = type(dataset)
    text = text_of(file_of(kind)) if file_of(kind) and not file_of(kind).startswith(BELOW) else None
    if text is None:
        return
    changed = changed_in_reads(kind)
    for attribute, part in attributes_of(dataset).items():
        if attribute in changed or not text.flows.matter_in_turns_at(("", f".{attribute}")):
            continue
        if isinstance(part, _PLAIN):
            yield f"{name}.{attribute}", part
        else:
            yield from whole_parts(part, names, f"{name}.{attribute}", depth - 1)


def _ends(part: Any) -> Any:
    """The part itself, or the ends of a large tensor or array with its shape."""
    if isinstance(part, Tensor | np.ndarray) and part.nbytes > SMALL_BYTES and part.ndim:
        return tuple(part.shape), part[:ENDS], part[-ENDS:]
    return part
