"""Datasets that a session can cut into slices: random access by row over files, mixes of data sets, sequences of packed
documents, and collating rows into a batch."""

from ringleader.data.collate import collate
from ringleader.data.copies import CopyFailed
from ringleader.data.file_dataset import FileDataset
from ringleader.data.images import decode_image, decode_image_float
from ringleader.data.mix import Mix
from ringleader.data.packed import Packed, cu_seqlens
from ringleader.data.parquet import ParquetDataset
from ringleader.data.sources.arrow import ArrowSource
from ringleader.data.sources.jsonl import JsonlSource
from ringleader.data.sources.mds import MdsSource
from ringleader.data.sources.webdataset import WebDatasetSource
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable, RowUnreadable

__all__ = [
    "ArrowSource",
    "BlockUnreadable",
    "CopyFailed",
    "FileDataset",
    "FileUnreadable",
    "JsonlSource",
    "MdsSource",
    "Mix",
    "Packed",
    "ParquetDataset",
    "RowUnreadable",
    "WebDatasetSource",
    "collate",
    "cu_seqlens",
    "decode_image",
    "decode_image_float",
]
