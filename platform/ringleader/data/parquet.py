"""A map-style data set over Parquet files."""

from collections.abc import Mapping, Sequence

from ringleader.data.copies import NodeCopies
from ringleader.data.file_dataset import CACHE_BYTES, Decoder, FileDataset
from ringleader.data.sources.parquet import ParquetSource
from ringleader.data.sources.paths import AnyPath


class ParquetDataset(FileDataset):
    """Rows of one or many Parquet files as dicts, by position.

    Integers and booleans come as Python numbers (a batch of them is int64 or bool), floats and lists
    of numbers or booleans as tensors of their own type, strings and bytes as they are, decoded columns as decoded.

    Args:
        source: a path, a folder, a URI of a pyarrow file system (`s3://…`), or a list of them, in order.
        columns: which columns to read; all when None.
        decode: a function from bytes to tensor for each column that holds encoded bytes, for example
            {"image": ringleader.data.decode_image}. A module-level function can be pickled with the dataset.
        keep_decoded: keep every row after its first read; for sets that fit in memory. Rows are then shared
            between reads: do not change them in place.
        cache_bytes: how much of the read row groups to keep, per process, and to read ahead at most.

    Raises:
        FileNotFoundError, KeyError, ValueError: no file, no such column, files that do not fit together.
        BlockUnreadable: a file, or at access a row group, that is damaged or has changed.
        RowUnreadable: at access, naming column and row.
    """

    def __init__(
        self,
        source: AnyPath | Sequence[AnyPath],
        *,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, Decoder] | None = None,
        keep_decoded: bool = False,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._files = ParquetSource(source)
        super().__init__(
            self._files,
            columns=columns,
            decode=decode,
            keep_decoded=keep_decoded,
            cache_bytes=cache_bytes,
        )
        self._copied = False

    def read_copies(self, copies: NodeCopies) -> None:
        """Read this node's copies of the files from now on. A session calls it where the job's data is `replicated`.

        Raises:
            CopyFailed: with the source and the reason.
        """
        if not self._copied:
            self._files.read_copies(copies)
            self._copied = True
