"""The commit of a checkpoint: once every writer is done and the step is settled, and never before."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointPosition, Manifest, SavedPart


@dataclass(frozen=True, slots=True)
class CheckpointMade:
    """A checkpoint that exists now.

    Attributes:
        removed: names of older ones that were removed for it, and of those that its attempt had passed over.
        not_removed: why more of them could not be removed; empty: all are gone.
    """

    manifest: Manifest
    uri: str
    copied_s: float
    removed: tuple[str, ...]
    not_removed: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.manifest.pieces)


class Committer:
    """The committer of one attempt. Called from one thread.

    Args:
        keep: how many checkpoints stay.
        spec: the job file, for the manifest.
    """

    def __init__(self, folder: Folder, *, keep: int, spec: Mapping[str, Any]) -> None:
        self._folder = folder
        self._keep = keep
        self._spec = spec
        self._written: dict[CheckpointPosition, dict[int, SavedPart]] = {}

    def add(self, saved: SavedPart) -> None:
        self._written.setdefault(saved.position, {})[saved.number] = saved

    def settle(self, step: float) -> CheckpointMade | None:
        """Commit the newest complete checkpoint up to `step`, at which all is settled; older ones are dropped. May be
        called again where it fails."""
        complete = [
            parts
            for parts in self._written.values()
            if 0 in parts and len(parts) == parts[0].count and parts[0].position.step <= step
        ]
        if not complete:
            return None
        # Of two at one step the later generation's has finished more, as an evaluation behind that step.
        parts = max(complete, key=lambda parts: parts[0].position.order)
        first = parts[0]
        committed = self._commit(first.position, [parts[number] for number in range(first.count)])
        # A worker may still be writing an older one: that is never complete here, and goes with the next.
        self._written = {at: other for at, other in self._written.items() if at.order > first.position.order}
        return committed

    def _commit(self, position: CheckpointPosition, parts: list[SavedPart]) -> CheckpointMade:
        # In the order of writers, whoever was done first: the manifest is the same.
        pieces = tuple(piece for saved in parts for piece in saved.pieces)
        # Before the manifest: on several nodes one path may lead to a folder of each node's own.
        self._folder.check_there(position.name, pieces)
        manifest = Manifest(position, pieces, self._spec, self._folder.job)
        self._folder.commit(position.name, manifest)
        removed, why = self._make_room(position)
        copied_s = max(saved.copied_s for saved in parts)
        return CheckpointMade(manifest, self._folder.place_of(position.name), copied_s, removed, why)

    def _make_room(self, position: CheckpointPosition) -> tuple[tuple[str, ...], str]:
        """Remove old checkpoints; returns their names, and why more could not go."""
        folder, gone = self._folder, list[str]()
        try:
            thinned = folder.thin_out(self._keep, but=position.name, last=position.final)
            # A generator: `thin_out` lists what is there once all that is set aside no longer counts.
            for name in chain(folder.set_aside(position), thinned):
                gone.append(name)
        except Exception as error:  # of whatever file system
            # Not raised: the new checkpoint exists, whatever becomes of the old ones, and the next one tries again.
            return tuple(gone), f"{type(error).__name__}: {error}"
        return tuple(gone), ""
