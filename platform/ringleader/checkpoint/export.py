"""The weights of a checkpoint as one safetensors file under their names. No torch, and nothing is unpickled."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ringleader.checkpoint.folder import CHUNK_BYTES, Folder, OpenFile
from ringleader.checkpoint.manifest import CheckpointFile, CheckpointUnreadable
from ringleader.checkpoint.parts import ALIGNED, CheckpointPart

CHECK_S = 10.0
"""The time to check files before the first byte, for which a client waits 30 s at most."""
MOST_HEAD_BYTES = 100_000_000
"""The largest table of a tensor file; the safetensors library reads none that is larger."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a weight: the number of its state, and of its tensor there."""

    state: int
    number: int


@dataclass(frozen=True, slots=True)
class _Span:
    """A tensor in a file: its entry in the file's head, and the range of its bytes."""

    file: OpenFile
    told: Mapping[str, Any]
    first: int
    end: int


class WeightsStream:
    """A weights file that is put together while it is read: a chunk of it is in memory at a time.

    Args:
        spans: the tensors, in their order in the file.
        checks: the reads that are left until every file is known to be whole.
        turns: the number of `checks` for each chunk that is handed out.
        files: the files to close with it.

    Attributes:
        size_bytes: the size of the file.
    """

    def __init__(
        self, head: bytes, spans: Sequence[_Span], checks: Iterator[None], turns: int, files: ExitStack
    ) -> None:
        self._head = head
        self._spans = spans
        self._checks = checks
        self._turns = turns
        self._files = files
        self.size_bytes = len(head) + sum(span.end - span.first for span in spans)

    def chunks(self) -> Iterator[bytes]:
        """The content; the last of it once every file is known to be whole.

        Raises:
            CheckpointUnreadable: one is not.
        """
        # One chunk behind: the last is held back until all checks are done, so that changed bytes never make a
        # whole file.
        before = self._head
        for chunk in self._content():
            yield before
            before = chunk
            for _ in islice(self._checks, self._turns):
                pass
        for _ in self._checks:
            pass
        yield before

    def _content(self) -> Iterator[bytes]:
        for span in self._spans:
            for start in range(span.first, span.end, CHUNK_BYTES):
                yield span.file.read(start, min(CHUNK_BYTES, span.end - start))

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def weights_of(uri: str, check_s: float = CHECK_S) -> WeightsStream:
    """Open a checkpoint's weights as one file; none of it is made yet.

    Args:
        check_s: seconds to read files through beforehand; the rest of them is read while the weights are handed out.

    Raises:
        CheckpointUnreadable: naming the file that is missing, torn or changed.
    """
    files = ExitStack()
    try:
        reader = _Reader(uri, files)
        places = _spoken(reader.places())
        spans = reader.spans(set(places.values()))
        head, order = _head({weight: spans[place] for weight, place in places.items()})
        until = time.monotonic() + check_s
        checks = reader.checking()
        for _ in checks:
            if time.monotonic() >= until:
                break
        # So many that the checks end with the chunks, whatever part of the files the weights are.
        turns = 1 + reader.size_bytes // max(1, sum(span.end - span.first for span in order))
        return WeightsStream(head, order, checks, turns, files)
    except BaseException:
        files.close()
        raise


class _Reader:
    """A reader of a checkpoint's weights. `files` closes those it opens; `size_bytes` is that of those with weights."""

    def __init__(self, uri: str, files: ExitStack) -> None:
        parent, _, self._name = uri.rstrip("/").rpartition("/")
        self._uri = uri
        self._files = files
        self._used: list[OpenFile] = []
        self.size_bytes = 0
        try:
            self._folder = Folder(parent)
        except ValueError as error:
            raise CheckpointUnreadable(uri, str(error)) from None
        self._pieces = {piece.name: piece for piece in self._folder.manifest(self._name).pieces}

    def places(self) -> Mapping[str, _Place]:
        """Every weight by its name: a server's own part is the newest, so later states replace earlier ones."""
        places: dict[str, _Place] = {}
        for state in self._states():
            piece = self._pieces[CheckpointPart(state).names]
            file = self._open(piece)
            for _ in file.checking():
                pass
            names = self._json(file, piece, 0, piece.size_bytes)
            places |= {str(weight): _Place(state, number) for weight, number in names.items()}
        if not places:
            raise CheckpointUnreadable(self._uri, "it does not say which of its tensors are weights")
        return places

    def spans(self, wanted: set[_Place]) -> Mapping[_Place, _Span]:
        """The places of the tensors. Files with none of them are left alone."""
        found: dict[_Place, _Span] = {}
        for state in self._states():
            for name, piece in self._pieces.items():
                # With the dash: the names of state 10 begin with `state-1`, too.
                if name.startswith(f"state-{state}-"):
                    file = self._open(piece)
                    table = {_Place(state, n): span for n, span in self._table(file, piece).items()}
                    if wanted & table.keys():
                        self._used.append(file)
                        self.size_bytes += piece.size_bytes
                        found |= table
                    else:
                        file.close()
        if missing := wanted - found.keys():
            raise CheckpointUnreadable(self._uri, f"{len(missing)} of its weights are missing from its files")
        return found

    def checking(self) -> Iterator[None]:
        """Read the files that have weights through, a chunk each turn. Raises CheckpointUnreadable."""
        for file in self._used:
            yield from file.checking()

    def _states(self) -> Iterator[int]:
        state = 0
        while CheckpointPart(state).names in self._pieces:
            yield state
            state += 1

    def _open(self, piece: CheckpointFile) -> OpenFile:
        file = self._folder.open(self._name, piece)
        self._files.callback(file.close)
        return file

    def _table(self, file: OpenFile, piece: CheckpointFile) -> dict[int, _Span]:
        """The tensors of a file, by number."""
        head_bytes = int.from_bytes(file.read(0, 8), "little")
        table, found = self._json(file, piece, 8, head_bytes), {}
        try:
            for number, told in table.items():
                first, end = (8 + head_bytes + offset for offset in told.pop("data_offsets"))
                found[int(number)] = _Span(file, told, first, end)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CheckpointUnreadable(self._uri, piece.changed) from None
        return found

    def _json(self, file: OpenFile, piece: CheckpointFile, start: int, size_bytes: int) -> dict[str, Any]:
        # The first bytes of a torn file may claim any size.
        if size_bytes > min(MOST_HEAD_BYTES, piece.size_bytes - start):
            raise CheckpointUnreadable(self._uri, piece.changed)
        try:
            found = json.loads(file.read(start, size_bytes))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise CheckpointUnreadable(self._uri, piece.changed)
        return found


def _spoken(places: Mapping[str, _Place]) -> Mapping[str, _Place]:
    """The weights by their names without the model's number, where there is one model only."""
    models = {weight.partition(".")[0] for weight in places}
    return {w.partition(".")[2]: place for w, place in places.items()} if len(models) == 1 else places


def _head(spans: Mapping[str, _Span]) -> tuple[bytes, list[_Span]]:
    """The head of the file, and the tensors behind it by size."""
    # The widest types first: then every tensor begins where its type may.
    order = sorted(spans, key=lambda name: (-_width(spans[name]), name))
    table, at = {}, 0
    for name in order:
        size_bytes = spans[name].end - spans[name].first
        table[name] = {**spans[name].told, "data_offsets": [at, at + size_bytes]}
        at += size_bytes
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text, [spans[name] for name in order]


def _width(span: _Span) -> int:
    digits = "".join(filter(str.isdigit, span.told["dtype"]))
    # In bits. BOOL has none in its name, and takes a byte.
    return int(digits) if digits else 8
