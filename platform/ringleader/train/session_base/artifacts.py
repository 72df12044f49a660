"""What a training function saves of a step: objects, images, histograms and texts, as artifacts of the job."""

from collections.abc import Callable
from typing import Any, Literal

from ringleader.errors import StepMisuse
from ringleader.train.session_base.encodings import (
    ambiguous_channels,
    histogram_encoding,
    image_encoding,
    object_encoding,
    text_encoding,
)
from ringleader.train.session_base.values import SessionValues
from ringleader.wire.artifacts import MOST_BYTES, NAME, SavedArtifact

Encoded = tuple[str, bytes]
"""A file's suffix, without the dot, and its content."""


class SessionArtifacts(SessionValues):
    """The part of a session that saves artifacts. All workers call it alike; one of them sends."""

    def save(self, name: str, value: Any) -> None:
        """Save an object as an artifact of the job, at the newest committed step.

        Call it between two loops or behind a step of `steps`, on all workers alike. It is kept once the step is
        settled, once over kills, joins and resumed attempts, and is copied to MLflow.

        Args:
            name: letters, digits, `.`, `_` and `-`. The file is the name, the step and a suffix: `sample-00000120.pt`.
            value: a tensor, an array, or tensors by name (safetensors); plain values (JSON); else tensors and plain
                values in dicts, lists and tuples, such as a state dict (a file that torch loads with `weights_only`).

        Raises:
            StepMisuse: in a loop's body; another artifact has the name at this step; the value is of other types, or
                larger than 16 MiB.
        """
        self._save("save", name, "object", lambda: object_encoding(value))

    def log_text(self, name: str, text: str) -> None:
        """Save a text, as `save` does: a `.txt` file."""
        self._save("log_text", name, "text", lambda: text_encoding(text))

    def log_image(self, name: str, image: Any, *, channels: Literal["first", "last"] | None = None) -> None:
        """Save an image, as `save` does: a PNG file.

        Args:
            image: (height, width), or with 1, 3 or 4 channels: uint8, or fractions from 0 to 1. Or an image of Pillow.
            channels: which dimension they are. None: the first of a tensor, the last of an array; where both may be,
                as in (3, 32, 3), a warning says which one was taken.
        """
        self._save("log_image", name, "image", lambda: image_encoding(image, channels))
        if channels is None and (place := ambiguous_channels(image)):
            shape = tuple(image.shape)
            self._member.warnings.add(
                "image",
                f"session.log_image got {name!r} of shape {shape}, whose first dimension and whose last may both be "
                f"channels: it takes the {place}, as of any {'tensor' if place == 'first' else 'array'}.",
                "Write channels='first' or channels='last'.",
            )

    def log_histogram(self, name: str, values: Any, *, bins: int = 64) -> None:
        """Save a histogram of numbers, as `save` does: a JSON file with `edges`, `counts`, and how many values there
        are, their least, greatest and mean, and how many of them are not finite.

        Args:
            values: a tensor or an array of numbers.
            bins: of equal width, from 1 to 1024.
        """
        self._save("log_histogram", name, "histogram", lambda: histogram_encoding(values, bins))

    def _save(self, call: str, name: str, kind: str, encode: Callable[[], Encoded]) -> None:
        _check_name(call, name)
        if not self._runs_first(call):
            return
        # What is read ends up in the artifact, and these lines make none when they run again.
        with self._member.sections.unwatched():
            suffix, content = encode()
        if len(content) > MOST_BYTES:
            raise StepMisuse(
                f"session.{call} got {len(content)} bytes as {name!r}; an artifact has at most {MOST_BYTES}.",
                hint="Weights are kept by checkpoints, by session.best, and as the job's weights at its end.",
            )
        self._member.reporter.artifacts.add(SavedArtifact(name, self.global_step, kind, suffix, content))

    def _runs_first(self, call: str) -> bool:
        """Whether the running lines run for the first time: where others have run them, they made the artifacts.
        Raises StepMisuse: a loop's body runs."""
        by_steps = self._loops.by_steps
        if by_steps.inside:
            return by_steps.runs_first(call)
        self._calls.check_outside(call)
        return not self._member.sections.on_recorded


def _check_name(call: str, name: str) -> None:
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise StepMisuse(
            f"session.{call} got the name {name!r:.120}.",
            hint="A name has 1 to 100 letters, digits, dots, '_' and '-', and begins with a letter or a digit.",
        )
