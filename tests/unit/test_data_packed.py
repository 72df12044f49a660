"""Packed sequences: every token once, documents kept apart."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from ringleader.data import FileDataset, Packed, cu_seqlens
from ringleader.data.sources.arrow import ArrowSource
from ringleader.data.unreadable import BlockUnreadable, RowUnreadable


class Blocks:
    """A source in memory, which counts its reads."""

    def __init__(self, blocks: list[list[list[int] | None]], kind: pa.DataType | None = None) -> None:
        self.schema = pa.schema({"input_ids": kind or pa.list_(pa.int32()), "text": pa.string()})
        self.blocks, self.reads = blocks, 0
        self.block_rows = np.array([len(block) for block in blocks], np.int64)
        self.digest = "0"

    def read(self, block: int, columns: list[str] | None) -> pa.RecordBatch:
        self.reads += 1
        column = pa.array(self.blocks[block], self.schema.field("input_ids").type)
        return pa.RecordBatch.from_arrays([column], names=["input_ids"])

    def name(self, block: int) -> str:
        return f"memory, block {block}"


def test_documents_are_laid_end_to_end_and_cut() -> None:
    packed = Packed(Blocks([[[1, 2, 3], [], [4, 5]], [[6, 7, 8, 9, 10, 11]], [[12]]]), 4, pad=99)
    rows = [{name: value.tolist() for name, value in packed[n].items()} for n in range(len(packed))]
    assert rows == [
        {"input_ids": [1, 2, 3, 4], "position_ids": [0, 1, 2, 0], "document_ids": [0, 0, 0, 1]},
        {"input_ids": [5, 6, 7, 8], "position_ids": [0, 0, 1, 2], "document_ids": [0, 1, 1, 1]},
        {"input_ids": [9, 10, 11, 12], "position_ids": [0, 1, 2, 0], "document_ids": [0, 0, 0, 1]},
    ]
    assert packed[-1]["input_ids"].tolist() == [9, 10, 11, 12]


def test_the_rest_fills_a_last_sequence_or_is_left_out() -> None:
    source = Blocks([[[1, 2, 3, 4, 5]]])
    packed = Packed(source, 4, pad=99)
    assert len(packed) == 2
    assert {name: value.tolist() for name, value in packed[1].items()} == {
        "input_ids": [5, 99, 99, 99],
        "position_ids": [0, 0, 0, 0],
        "document_ids": [0, -1, -1, -1],
    }
    assert len(Packed(source, 4, drop_rest=True)) == 1
    with pytest.raises(ValueError, match="has 5 tokens: no sequence of 6"):
        Packed(source, 6, drop_rest=True)


DOCUMENTS = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=12), st.integers(1, 20))
def test_every_token_comes_once_and_sees_its_own_document(blocks: list[list[list[int]]], length: int) -> None:
    documents = [document for block in blocks for document in block]
    tokens = [token for document in documents for token in document]
    if not tokens:
        return
    packed = Packed(Blocks(blocks), length)
    whole = default_collate([packed[n] for n in range(len(packed))])
    there = whole["document_ids"].flatten() >= 0
    assert whole["input_ids"].flatten()[there].tolist() == tokens
    of = [n for n, document in enumerate(documents) for _ in document]
    for n in range(len(packed)):
        row = packed[n]
        mine = of[n * length : (n + 1) * length]
        ids = row["document_ids"][: len(mine)]
        same = torch.tensor(mine)[:, None] == torch.tensor(mine)[None, :]
        assert torch.equal(ids[:, None] == ids[None, :], same)
        begins = {number: mine.index(number) for number in set(mine)}
        assert row["position_ids"][: len(mine)].tolist() == [
            at - begins[number] for at, number in enumerate(mine)
        ]


def test_a_sequence_reads_the_blocks_that_it_lies_in_alone() -> None:
    source = Blocks([[[n] * 10] for n in range(100)])
    packed = Packed(source, 15)
    before = source.reads
    assert packed[40]["input_ids"].tolist() == [60] * 10 + [61] * 5
    assert source.reads - before == 2
    packed[40]
    assert source.reads - before == 2


def test_blocks_are_the_sequences_that_begin_in_a_block_of_documents() -> None:
    source = Blocks([[[1] * 7, [2]], [[3]], [], [[4] * 9]])
    packed = Packed(FileDataset(source), 3)
    assert FileDataset.files(packed).block_rows.tolist() == [3, 3]
    whole = packed.batch(range(len(packed)))
    assert whole["input_ids"].tolist() == [[1, 1, 1], [1, 1, 1], [1, 2, 3], [4, 4, 4], [4, 4, 4], [4, 4, 4]]
    assert whole["document_ids"].tolist()[2] == [0, 1, 2]
    assert packed.by_column()
    rows = default_collate([packed[n] for n in range(len(packed))])
    assert all(torch.equal(whole[name], rows[name]) for name in rows)
    assert [value.dtype for value in rows.values()] == [torch.int64, torch.int32, torch.int32]


def test_the_places_of_documents_are_what_kernels_take() -> None:
    ids = torch.tensor([[0, 0, 1, 1], [0, 0, 0, -1]])
    found = cu_seqlens(ids)
    assert found.dtype == torch.int32
    assert found.tolist() == [0, 2, 4, 7, 8]
    # Equal numbers in two rows are two documents.
    assert cu_seqlens(torch.zeros(2, 3, dtype=torch.long)).tolist() == [0, 3, 6]


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64()), pa.list_(pa.int32(), 3)])
def test_lists_of_any_kind_of_whole_numbers_do(kind: pa.DataType) -> None:
    packed = Packed(Blocks([[[1, 2, 3], [4, 5, 6]]], kind), 2)
    assert [packed[n]["input_ids"].tolist() for n in range(3)] == [[1, 2], [3, 4], [5, 6]]
    assert packed[0]["input_ids"].dtype == torch.int64


def test_what_cannot_be_packed_is_refused() -> None:
    source = Blocks([[[1]], [[2], None]])
    with pytest.raises(RowUnreadable, match="column 'input_ids' of row 2 cannot be read: it is null"):
        Packed(source, 4)
    with pytest.raises(KeyError, match="no column 'tokens'"):
        Packed(source, 4, column="tokens")
    with pytest.raises(TypeError, match="column 'text' is string; a packed set needs lists of whole numbers"):
        Packed(source, 4, column="text")
    with pytest.raises(ValueError, match="has 0 tokens"):
        Packed(Blocks([[[]]]), 4)
    with pytest.raises(TypeError, match="not of list: write its documents to Parquet"):
        Packed([[1, 2], [3]], 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length is 0"):
        Packed(source, 0)
    whole = Blocks([[[1]]])
    with pytest.raises(TypeError, match=r"are whole numbers, and not 4\.0 and 0"):
        Packed(whole, 4.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"are whole numbers, and not 4 and 0\.5"):
        Packed(whole, 4, pad=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pad is 9223372036854775808"):
        Packed(whole, 4, pad=2**63)
    with pytest.raises(BlockUnreadable, match=r"memory, block 0 cannot be read: .* more than 63 bits"):
        Packed(Blocks([[[2**63]]], pa.list_(pa.uint64())), 4)
    with pytest.raises(IndexError, match="row 1 of a dataset with 1 rows"):
        Packed(Blocks([[[1]]]), 4)[1]


def test_it_reads_real_files_in_other_processes_too(tmp_path: Path) -> None:
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema({"input_ids": pa.list_(pa.int32())})) as out:
        out.write_table(
            pa.table({"input_ids": pa.array([[n] * n for n in range(50)], pa.list_(pa.int32()))}), 7
        )
    packed = pickle.loads(pickle.dumps(Packed(ArrowSource(tmp_path), 16)))
    found = torch.cat([packed[n]["input_ids"] for n in range(len(packed))])[: 49 * 25]
    assert found.tolist() == [n for n in range(50) for _ in range(n)]
