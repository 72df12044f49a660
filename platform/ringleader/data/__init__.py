"""Datasets that a session can cut into slices: random access by row over Parquet, and collating rows into a batch."""

from ringleader.data.collate import collate
from ringleader.data.copies import CopyFailed
from ringleader.data.file_dataset import FileDataset
from ringleader.data.images import decode_image, decode_image_float
from ringleader.data.parquet import ParquetDataset
from ringleader.data.unreadable import BlockUnreadable, RowUnreadable

__all__ = [
    "BlockUnreadable",
    "CopyFailed",
    "FileDataset",
    "ParquetDataset",
    "RowUnreadable",
    "collate",
    "decode_image",
    "decode_image_float",
]
