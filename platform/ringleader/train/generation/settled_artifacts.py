"""Artifacts on their way out: what `session.save` and its like made of a step leaves once the step is settled.

Every member makes the same ones; one sends them. Where that is lost, the next one sends what may not be stored yet, and
whoever stores them takes each once.
"""

from typing import Any

from ringleader.errors import StepMisuse
from ringleader.train.ports import RecordSink
from ringleader.wire.artifacts import MOST_AT_ONCE, SavedArtifact


class SettledArtifacts:
    """The artifacts of one member that are not known to be stored, by file: of steps that may be rolled back, and of
    settled ones. They are healed and checkpointed, as lines that run again make none."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self._open: dict[str, SavedArtifact] = {}
        self._settled: dict[str, SavedArtifact] = {}
        self._speaks = False

    def add(self, artifact: SavedArtifact) -> None:
        """Take an artifact of the newest committed step.

        Raises:
            StepMisuse: another one of that name and step is there, or those of the step are too large together.
        """
        self._forget_stored()
        known = self._open.get(artifact.file) or self._settled.get(artifact.file)
        if known is not None:
            if known.content != artifact.content:
                raise StepMisuse(
                    f"two different artifacts were saved as {artifact.name!r} at step {artifact.step}.",
                    hint="Give each a name of its own.",
                )
            return
        together = sum(len(each.content) for each in self._open.values() if each.step == artifact.step)
        if together + len(artifact.content) > MOST_AT_ONCE:
            raise StepMisuse(
                f"the artifacts saved at step {artifact.step} are larger than {MOST_AT_ONCE >> 20} MiB together.",
                hint="Save less at one step. Weights are kept by checkpoints and session.best.",
            )
        self._open[artifact.file] = artifact

    def begin_generation(self, *, speaks: bool) -> None:
        """Begin a generation: the member that sends in it sends what the one before may not have sent."""
        self._speaks = speaks
        self._send(self._settled)

    def end_generation(self) -> None:
        """End a generation: nobody sends between two."""
        self._speaks = False

    def settle(self) -> None:
        """Settle the open ones: their step can no longer be rolled back."""
        if not (self._open or self._settled):
            return
        self._forget_stored()
        opened, self._open = self._open, {}
        self._settled |= opened
        self._send(opened)

    def state(self) -> Any:
        return [[_plain(each) for each in part.values()] for part in (self._open, self._settled)]

    def restore(self, state: Any) -> None:
        """Take over a peer's, beside those of this member: it may have run lines that made one as first."""
        for mine, theirs in zip((self._open, self._settled), state, strict=True):
            for plain in theirs:
                artifact = SavedArtifact(*plain)
                mine[artifact.file] = artifact
        for file in self._settled:
            self._open.pop(file, None)

    def _send(self, artifacts: dict[str, SavedArtifact]) -> None:
        if self._speaks:
            for artifact in artifacts.values():
                self._sink.artifact(artifact)

    def _forget_stored(self) -> None:
        # One is sent before the metrics of the step behind its own: where those are stored, so is it.
        stored = self._sink.recorded_step()
        for part in (self._open, self._settled):
            for file in [file for file, each in part.items() if each.step + 1 < stored]:
                del part[file]


def _plain(artifact: SavedArtifact) -> tuple[str, int, str, str, bytes]:
    return artifact.name, artifact.step, artifact.kind, artifact.suffix, artifact.content
