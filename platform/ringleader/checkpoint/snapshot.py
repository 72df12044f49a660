"""One member's part of a committed state: copied at a boundary, written while training goes on."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import (
    CheckpointFile,
    CheckpointsUnreachable,
    CheckpointUnreadable,
    Manifest,
    beginning,
)
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.pieces import assign, put_together, take_apart, weights_in
from ringleader.checkpoint.tensor_file import TensorFile
from ringleader.checkpoint.writer import WriteOrder
from ringleader.comm.segments import Segment

SHARED = hasattr(os, "memfd_create")
"""Whether this system has memory that another process can map through its owner."""


class SnapshotMemory:
    """Host memory that one snapshot after the other is copied into: memory used before costs no page faults. A process
    that writes can map it, where the system has such memory."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._segment: Segment | None = None

    @property
    def descriptor(self) -> int:
        """This process's descriptor of it, for another process to map; -1: it cannot be mapped."""
        return -1 if self._segment is None else self._segment.descriptor

    def take(self, size_bytes: int) -> Tensor:
        """(size_bytes,) uint8; the snapshot before must not be needed any more."""
        if self._memory.numel() < size_bytes:
            self._memory = self._grown(size_bytes)
        return self._memory[:size_bytes]

    def prepare(self, size_bytes: int) -> None:
        """Take memory and touch every new page, so that no snapshot of this size has to."""
        if self._memory.numel() < size_bytes:
            self.take(size_bytes).zero_()

    def release(self) -> None:
        """Give the memory up; the snapshot in it must not be needed any more. Idempotent."""
        if self._segment is not None:
            self._segment.close()
        self._memory, self._segment = torch.empty(0, dtype=torch.uint8), None

    def _grown(self, size_bytes: int) -> Tensor:
        # The old memory goes first: both together may be more than there is.
        self.release()
        with suppress(OSError):  # a system may allow less memory to share than to use
            self._segment = Segment.create(size_bytes) if SHARED else None
        if self._segment is None:
            return torch.empty(size_bytes, dtype=torch.uint8)
        return self._segment.tensor(0, size_bytes, torch.uint8)


class Snapshot:
    """The copy of the part that this member has to write. Making it is all that the training thread waits for.

    Args:
        state: the same on all its writers, down to the sizes of its tensors.
        room: the memory for the copy; its own where it is left out.

    Attributes:
        size_bytes: the size of the tensors copied.
        took_s: seconds that the copy took.
    """

    def __init__(self, state: Any, part: CheckpointPart, room: SnapshotMemory | None = None) -> None:
        since = time.perf_counter()
        skeleton, tensors = take_apart(state, devices=True)
        own = _own(tensors, part)
        self._part = part
        self._small: tuple[tuple[str, bytes], ...] = ()
        # Once for each state: its writers have the same skeleton.
        if part.writer == 0:
            names = json.dumps(weights_in(state, tensors)).encode()
            self._small = ((part.skeleton, skeleton), (part.names, names))
        self._file = TensorFile.of(own)
        self._room = room or SnapshotMemory()
        self._memory = self._room.take(self._file.size_bytes)
        self._file.fill(self._memory, own)
        self.size_bytes = self._file.size_bytes
        self.took_s = time.perf_counter() - since

    def write(self, folder: Folder, name: str) -> list[CheckpointFile]:
        """Write the files; returns their entries for the manifest."""
        pieces = [folder.write(name, file, content) for file, content in self._small]
        content = self._memory.numpy().data
        return [*pieces, folder.write(name, self._part.tensors, self._file.head, content)]

    def order(self, place: str, name: str) -> WriteOrder | None:
        """The order by which another process writes the files; None where none can map the memory."""
        descriptor = self._room.descriptor
        # Without tensors there is nothing to map.
        if descriptor < 0 and self.size_bytes:
            return None
        return WriteOrder(
            place, name, self._small, self._part.tensors, self._file.head, descriptor, self.size_bytes
        )


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint that was read whole.

    Attributes:
        place: its URI, for messages.
        states: one, or one of each parameter server.
    """

    place: str
    manifest: Manifest
    states: list[Any]


def size_of(state: Any, part: CheckpointPart) -> int:
    """Bytes of room that a snapshot of this state takes."""
    return sum(tensor.nbytes for tensor in _own(take_apart(state)[1], part).values())


def read(folder: Folder, name: str, device: torch.device | None = None) -> FoundCheckpoint:
    """Read a checkpoint whole. Raises CheckpointUnreadable, naming the file that is missing, torn, changed or of
    another program.

    Args:
        device: for the tensors that lay on a device when they were saved; None: host memory.
    """
    manifest, contents = folder.read(name)
    place = folder.place_of(name)
    states: list[Any] = []
    while (skeleton := contents.get(CheckpointPart(len(states)).skeleton)) is not None:
        start = f"state-{len(states)}-"
        tensors: dict[int, Tensor] = {}
        for file, content in contents.items():
            if file.startswith(start):
                tensors.update(_numbered(place, file, content))
        states.append(_restored(place, skeleton, tensors, device))
    return FoundCheckpoint(place, manifest, states)


def checkpoint_at(uri: str) -> FoundCheckpoint:
    """Read the checkpoint with that URI, which `init_from` names.

    Raises:
        BeginningUnreadable: naming the file that is missing, torn, changed or of another program.
        CheckpointsUnreachable: its file system does not answer.
        ValueError: no such file system.
    """
    parent, _, name = uri.rstrip("/").rpartition("/")
    with beginning(uri):
        return read(Folder(parent), name)


def newest(
    folder: Folder, device: torch.device | None = None
) -> tuple[FoundCheckpoint | None, list[CheckpointUnreadable]]:
    """The newest checkpoint that can be read whole, and the errors of those after it. For `device` see `read`.

    Raises:
        CheckpointsUnreachable: that cannot be found out now. To begin with an older one would lose the newest.
    """
    passed_over: list[CheckpointUnreadable] = []
    for name in folder.names():
        try:
            found = read(folder, name, device)
            if found.manifest.job not in ("", folder.job):
                raise CheckpointUnreadable(found.place, f"it belongs to job {found.manifest.job}")
            return found, passed_over
        except CheckpointsUnreachable:
            raise  # it would be passed over otherwise, as a kind of CheckpointUnreadable
        except CheckpointUnreadable as error:
            passed_over.append(error)
    return None, passed_over


def _own(tensors: Sequence[Tensor], part: CheckpointPart) -> dict[str, Tensor]:
    """The tensors that this writer writes, by number."""
    owners = assign([tensor.nbytes for tensor in tensors], part.writers)
    pairs = enumerate(zip(tensors, owners, strict=True))
    return {str(number): tensor for number, (tensor, owner) in pairs if owner == part.writer}


def _numbered(place: str, file: str, content: bytes) -> dict[int, Tensor]:
    try:
        return {int(number): tensor for number, tensor in tensors_of(content).items()}
    except (SafetensorError, ValueError) as error:
        raise CheckpointUnreadable(place, f"{file} is not a tensor file ({error})") from None


def _restored(place: str, skeleton: bytes, tensors: Mapping[int, Tensor], device: torch.device | None) -> Any:
    try:
        # By number: where one is missing this raises, instead of shifting those behind it.
        return put_together(skeleton, [tensors[number] for number in range(len(tensors))], device)
    except Exception as error:  # unpickling runs whatever classes the state is made of
        why = f"its state cannot be restored ({type(error).__name__}: {error})"
        raise CheckpointUnreadable(place, why) from error
