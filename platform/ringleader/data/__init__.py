"""Datasets that a session can cut into slices: random access by row over Parquet, and collating rows into a batch."""

from ringleader.data.collate import collate
from ringleader.data.copies import CopyFailed
from ringleader.data.parquet import ParquetDataset, RowUnreadable, decode_image, decode_image_float

__all__ = ["CopyFailed", "ParquetDataset", "RowUnreadable", "collate", "decode_image", "decode_image_float"]
