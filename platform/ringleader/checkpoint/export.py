"""The weights of a checkpoint as one safetensors file under their names. No torch, and nothing is unpickled."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointUnreadable
from ringleader.checkpoint.parts import Part
from ringleader.checkpoint.tensor_file import ALIGNED

Entry = tuple[Mapping[str, Any], bytes]
"""What a tensor file's head says of a tensor, and the tensor's bytes."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A weight: which tensor of which state."""

    state: int
    number: int


def weights_of(uri: str) -> bytes:
    """The content of a weights file.

    Raises:
        CheckpointUnreadable: naming the file that is missing, torn or changed.
    """
    parent, _, name = uri.rstrip("/").rpartition("/")
    _, contents = Folder(parent).read(name)
    tensors: dict[_Place, Entry] = {}
    places: dict[str, _Place] = {}
    state = 0
    while (names := contents.get(Part(state).names)) is not None:
        # A server's own part is the newest: later states replace what earlier ones say.
        places |= {weight: _Place(state, number) for weight, number in json.loads(names).items()}
        for file, content in contents.items():
            if file.startswith(f"state-{state}-"):
                tensors |= {_Place(state, number): entry for number, entry in _entries(content).items()}
        state += 1
    if not places:
        raise CheckpointUnreadable(uri, "it does not say which of its tensors are weights")
    return _file({weight: tensors[place] for weight, place in _spoken(places).items()})


def _spoken(places: Mapping[str, _Place]) -> Mapping[str, _Place]:
    """Without the number of the model, where there is one."""
    models = {weight.partition(".")[0] for weight in places}
    return {w.partition(".")[2]: place for w, place in places.items()} if len(models) == 1 else places


def _entries(content: bytes) -> dict[int, Entry]:
    """The tensors of one file, by number."""
    start = 8 + int.from_bytes(content[:8], "little")
    table = json.loads(content[8:start])
    found = {}
    for number, told in table.items():
        first, end = told.pop("data_offsets")
        found[int(number)] = (told, content[start + first : start + end])
    return found


def _file(entries: Mapping[str, Entry]) -> bytes:
    """Tensors in the order of their size, so that every one begins where its type may."""
    order = sorted(entries, key=lambda name: (-_width(entries[name]), name))
    table, at = {}, 0
    for name in order:
        told, content = entries[name]
        table[name] = {**told, "data_offsets": [at, at + len(content)]}
        at += len(content)
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % ALIGNED)
    return len(head).to_bytes(8, "little") + head + b"".join(entries[name][1] for name in order)


def _width(entry: Entry) -> int:
    digits = "".join(filter(str.isdigit, entry[0]["dtype"]))
    return int(digits) if digits else ALIGNED
