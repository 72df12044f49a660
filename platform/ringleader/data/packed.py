"""Documents as sequences of one length for language models: one after the other, and cut."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from ringleader.data.columns import is_list
from ringleader.data.file_dataset import CACHE_BYTES, FileDataset
from ringleader.data.sources.files import digest_of
from ringleader.data.sources.kept_index import Facts, by_threads, kept_facts, numbers
from ringleader.data.sources.source import Source, columns_of
from ringleader.data.unreadable import BlockUnreadable, RowUnreadable

PADDING = -1
"""The document of the tokens that fill the last sequence up."""
TYPES = {"input_ids": pa.int64(), "position_ids": pa.int32(), "document_ids": pa.int32()}
"""By column of a sequence, the type of its numbers."""


class Packed(FileDataset):
    """Sequences of `length` tokens: all documents one after the other, cut every `length` tokens, so that each token is
    in one sequence, once. A longer document goes on in the next sequence; the rest behind the last whole sequence is
    filled up with `pad`.

    A row is a dict of (length,) tensors, which stack: `input_ids` (int64); `position_ids` (int32), which begin with 0
    at each document and at each sequence; and `document_ids` (int32), the documents of the sequence numbered from 0,
    -1 where it is filled up. Tokens may see each other where these are equal (`ids[:, :, None] == ids[:, None, :]`);
    `ringleader.data.cu_seqlens` makes of them what kernels for sequences of different lengths take.

    All blocks are read once on a node, to count their tokens. A block of this set is the sequences that begin
    in a block of the files: with `order: block` each of these is decoded for its own sequences, and once more for the
    end of the last one before it.

    Args:
        source: files with a column of lists of whole numbers, one list a document, as a source or a data set over one.
            Empty lists count for nothing.
        length: tokens of a sequence.
        column: the name of that column.
        pad: the token that fills the last sequence up.
        drop_rest: leave the last sequence out where it is not whole.
        cache_bytes: as for `FileDataset`; a token takes 16 bytes.

    Raises:
        KeyError, TypeError, ValueError: there is no such column, it holds something else, or there are no tokens, or
            `length` or `pad` is not allowed.
        RowUnreadable: a document is null.
        BlockUnreadable: naming file and block.
    """

    def __init__(
        self,
        source: Source | FileDataset,
        length: int,
        *,
        column: str = "input_ids",
        pad: int = 0,
        drop_rest: bool = False,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        files: Any = FileDataset.files(source) if isinstance(source, FileDataset) else source
        if not isinstance(files, Source):
            raise TypeError(
                f"a packed set is made of files, and not of {type(files).__name__}: write its documents to "
                f"Parquet, lists of whole numbers in a column, and give ParquetDataset(path)"
            )
        super().__init__(PackedSource(files, length, column, pad, drop_rest), cache_bytes=cache_bytes)


class PackedSource:
    """The sequences of `Packed`, as a source: a block is those that begin in a block of the documents.

    Attributes:
        tokens: of all documents together.
    """

    def __init__(self, documents: Source, length: int, column: str, pad: int, drop_rest: bool) -> None:
        if not all(isinstance(number, int | np.integer) for number in (length, pad)):
            raise TypeError(
                f"length and pad of a packed set are whole numbers, and not {length!r} and {pad!r}"
            )
        if length < 1:
            raise ValueError(f"length is {length}; allowed: 1 or more")
        if not -(2**63) <= pad < 2**63:
            raise ValueError(f"pad is {pad}; allowed: a token of 64 bits")
        self._documents, self._length, self._column, self._pad = documents, length, column, pad
        self._check_column()
        # (blocks + 1,) int64: the tokens before each block of documents, and all.
        self._edges = np.cumsum([0, *numbers(kept_facts(self._key, self._index), "counts")], dtype=np.int64)
        self.tokens = int(self._edges[-1])
        sequences = self.tokens // length if drop_rest else -(-self.tokens // length)
        if not sequences:
            raise ValueError(f"column {column!r} has {self.tokens} tokens: no sequence of {length}")
        # The sequences before each block of documents: one that began in an earlier block is of that.
        # At most as many as there are: with `drop_rest` the last tokens are in none.
        firsts = np.minimum(-(-self._edges // length), sequences)
        rows = np.diff(firsts)
        self._blocks = np.flatnonzero(rows)
        self._firsts, self.block_rows = firsts[self._blocks], rows[self._blocks]
        self.schema = pa.schema([(name, pa.list_(kind, length)) for name, kind in TYPES.items()])
        self.digest = digest_of("packed", documents.digest, length, column, pad, self._edges, sequences)

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        rows, first = int(self.block_rows[block]), int(self._firsts[block])
        shape = (rows, self._length)
        tokens, documents = self._between(
            int(self._blocks[block]), first * self._length, (first + rows) * self._length
        )
        filled = shape[0] * shape[1] - len(tokens)
        tokens = np.pad(tokens, (0, filled), constant_values=self._pad).reshape(shape)
        documents = np.pad(documents, (0, filled), constant_values=PADDING).reshape(shape)
        # Before the first token stands a number that no document has, nor padding: so each row begins something.
        begins = np.diff(documents, axis=1, prepend=PADDING - 1) != 0
        places = np.arange(self._length)
        found = {
            "input_ids": tokens,
            "position_ids": places - np.maximum.accumulate(np.where(begins, places, 0), axis=1),
            "document_ids": np.cumsum(begins, axis=1) - 1,
        }
        found["position_ids"][documents == PADDING] = 0
        found["document_ids"][documents == PADDING] = PADDING
        schema = columns_of(self.schema, columns)
        arrays = [
            pa.FixedSizeListArray.from_arrays(pa.array(found[name].reshape(-1), TYPES[name]), self._length)
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def name(self, block: int) -> str:
        return self._documents.name(int(self._blocks[block]))

    def _key(self) -> str:
        """The name of the index: of that of the documents, where they have one."""
        told = getattr(self._documents, "index_key", str)()
        # With what a wrapper of a source, which may read other tokens from the same files, says of itself.
        rows = self._documents
        return digest_of("packed", told, type(rows).__qualname__, rows.digest, self._column) if told else ""

    def _index(self) -> Facts:
        blocks = len(self._documents.block_rows)
        counts = list(by_threads(lambda block: len(self._tokens(block)[0]), blocks))
        return {"counts": pa.array(counts, pa.int64())}

    def _between(self, block: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """(n,) int64 tokens from the first one, which is in this block, to the end; and (n,) the number of the document
        that each is in, from some number on."""
        tokens: list[np.ndarray] = []
        documents: list[np.ndarray] = []
        end, before = min(end, self.tokens), 0
        while (at := first + sum(map(len, tokens))) < end:
            begins, ends = self._edges[block : block + 2].tolist()
            found, document_ends = self._tokens(block)
            low, high = at - begins, min(end, ends) - begins
            tokens.append(found[low:high].astype(np.int64))
            # `right` passes over empty documents, which end where the one before them does.
            documents.append(before + np.searchsorted(document_ends, np.arange(low, high), side="right"))
            before += len(document_ends)
            block += 1
        return np.concatenate(tokens), np.concatenate(documents)

    def _tokens(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """(n,) the tokens of a block of documents, and (documents,) int64 where each of these ends."""
        column = self._documents.read(block, [self._column]).column(0)
        if column.null_count:
            first = int(np.sum(self._documents.block_rows[:block]))
            raise RowUnreadable(self._column, first + column.is_null().to_pylist().index(True), "it is null")
        tokens = column.flatten()
        if tokens.null_count:
            raise BlockUnreadable(
                self._documents.name(block), f"column {self._column!r} has tokens that are null"
            )
        # A batch has them as int64, in which a larger one would be another token.
        if pa.types.is_uint64(tokens.type) and len(tokens) and pc.max(tokens).as_py() >= 2**63:
            raise BlockUnreadable(
                self._documents.name(block), f"column {self._column!r} has tokens of more than 63 bits"
            )
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        return tokens.to_numpy(zero_copy_only=False), np.cumsum(lengths, dtype=np.int64)

    def _check_column(self) -> None:
        schema = self._documents.schema
        if self._column not in schema.names:
            raise KeyError(f"no column {self._column!r} in {self._documents.name(0)}; it has {schema.names}")
        kind = schema.field(self._column).type
        if not is_list(kind) or not pa.types.is_integer(kind.value_type):
            raise TypeError(f"column {self._column!r} is {kind}; a packed set needs lists of whole numbers")


def cu_seqlens(document_ids: Tensor) -> Tensor:
    """The begins of sequences of different lengths in a batch that is laid end to end, and the end of the last one.

    Args:
        document_ids: (batch, length) int64, of rows of `Packed`.

    Returns:
        (n + 1,) int32 from 0 to batch × length, as kernels for attention take it: tokens of different documents, or of
        different rows, see nothing of each other. What fills a row up counts as a document.
    """
    begins = torch.ones_like(document_ids, dtype=torch.bool)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    places = begins.flatten().nonzero().flatten()
    return torch.cat([places, places.new_tensor([document_ids.numel()])]).int()
