"""ParquetDataset: any row at any time, in any process, as values that stack."""

import io
import pickle
import threading
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from ringleader.data import (
    ArrowSource,
    FileDataset,
    ParquetDataset,
    RowUnreadable,
    collate,
    decode_image,
    decode_image_float,
)
from ringleader.data.columns import plain
from ringleader.errors import DatasetUnsupported

ROWS, GROUP = 23, 5


def png(value: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (4, 3), value if mode == "L" else (value, 2, 3)).save(out, "PNG")
    return out.getvalue()


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "image": pa.array([png(n) for n in numbers]),
            "label": pa.array([n % 10 for n in numbers], pa.uint8()),
            "weight": pa.array([n / 2 for n in numbers], pa.float32()),
            "tokens": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int32())),
            "name": pa.array([f"row {n}" for n in numbers]),
        }
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "a.parquet"
    pq.write_table(table(0, ROWS), out, row_group_size=GROUP)
    return out


def labels(dataset: ParquetDataset, rows: list[int]) -> list[int]:
    return [row["label"] for row in dataset.__getitems__(rows)]


def test_tensors_of_one_shape_stack_to_a_tensor_of_that_shape(tmp_path: Path) -> None:
    values = np.arange(4 * 2 * 3, dtype=np.float32).reshape(4, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet", row_group_size=3)
    dataset = ParquetDataset(tmp_path / "a.parquet")
    assert dataset.by_column()
    assert torch.equal(dataset[3]["x"], torch.from_numpy(values[3]))
    assert torch.equal(dataset.batch([3, 0])["x"], torch.from_numpy(values[[3, 0]]))


def test_views_of_lists_and_runs_are_read_as_lists_and_values_are(tmp_path: Path) -> None:
    lists = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_view(pa.int32()))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([0.5, 1.5], pa.float32()))
    rows = pa.table({"v": lists, "r": runs})
    with pa.ipc.new_file(tmp_path / "a.arrow", rows.schema) as out:
        out.write_table(rows)
    dataset = FileDataset(ArrowSource(tmp_path / "a.arrow"))
    assert dataset.by_column()
    batch = dataset.batch([2, 0])
    assert torch.equal(batch["v"], torch.tensor([[5, 6], [1, 2]], dtype=torch.int32))
    assert torch.equal(batch["r"], torch.tensor([1.5, 0.5]))
    assert torch.equal(dataset[1]["v"], torch.tensor([3, 4], dtype=torch.int32))
    views = pa.record_batch({"v": pa.array([[9], None, [], [1, 2]], pa.list_view(pa.int8()))}).slice(1)
    assert plain(views)["v"].to_pylist() == [None, [], [1, 2]]


def test_a_null_tensor_is_refused_by_its_row(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 1])
    storage = pa.array([[1, 2], None, [5, 6]], kind.storage_type)
    rows = pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)})
    with pa.ipc.new_file(tmp_path / "a.arrow", rows.schema) as out:  # pyarrow reads no such null from Parquet
        out.write_table(rows)
    dataset = FileDataset(ArrowSource(tmp_path / "a.arrow"))
    assert dataset[2]["x"].tolist() == [[5], [6]]
    with pytest.raises(RowUnreadable, match="column 'x' of row 1 cannot be read: it is null"):
        dataset.batch([0, 1])


def test_every_row_is_found_in_every_order(path: Path) -> None:
    dataset = ParquetDataset(path)
    order = np.random.default_rng(7).permutation(ROWS).tolist()
    assert len(dataset) == ROWS
    assert [r["name"] for r in dataset.__getitems__(order)] == [f"row {n}" for n in order]
    assert [dataset[n]["name"] for n in order] == [f"row {n}" for n in order]
    assert labels(dataset, [3, 3, -1]) == [3, 3, (ROWS - 1) % 10]


def test_a_row_outside_is_refused(path: Path) -> None:
    with pytest.raises(IndexError, match=f"row {ROWS} of a dataset with {ROWS} rows"):
        ParquetDataset(path)[ROWS]


def test_values_keep_their_types_in_a_batch(path: Path) -> None:
    dataset = ParquetDataset(path, decode={"image": decode_image})
    batch = collate(dataset.__getitems__([0, 7]))
    assert batch["image"].shape == (2, 3, 3, 4)
    assert batch["image"].dtype == torch.uint8
    assert batch["image"][1, :, 0, 0].tolist() == [7, 2, 3]
    assert batch["label"].dtype == torch.int64
    assert batch["weight"].dtype == torch.float32
    assert batch["weight"].tolist() == [0.0, 3.5]
    assert torch.equal(batch["tokens"], torch.tensor([[0, 1], [7, 8]], dtype=torch.int32))
    assert batch["name"] == ["row 0", "row 7"]


def test_grey_images_keep_one_channel_and_floats_lie_in_0_to_1() -> None:
    assert decode_image(png(9, "L")).tolist() == [[[9] * 4] * 3]
    assert decode_image_float(png(255))[0].unique().tolist() == [1.0]


def test_a_batch_reads_each_row_group_once_and_the_cache_stays_bounded(path: Path) -> None:
    dataset = ParquetDataset(path, cache_bytes=1)
    labels(dataset, [0, 10, 22, 1, 11, 21])
    assert dataset._reader.get().held == 1
    roomy = ParquetDataset(path)
    labels(roomy, [0, 10, 22])
    assert roomy._reader.get().held == 3


def test_kept_rows_are_decoded_once(path: Path) -> None:
    dataset = ParquetDataset(path, decode={"image": decode_image}, keep_decoded=True)
    assert dataset[4]["image"] is dataset[4]["image"]
    plain = ParquetDataset(path, decode={"image": decode_image})
    assert plain[4]["image"] is not plain[4]["image"]


def test_files_folders_lists_and_uris_are_one_set(path: Path, tmp_path: Path) -> None:
    pq.write_table(table(ROWS, 4), tmp_path / "b.parquet")
    both = [f"row {n}" for n in range(ROWS + 4)]
    for source in (tmp_path, [path, tmp_path / "b.parquet"], f"file://{tmp_path}"):
        dataset = ParquetDataset(source, columns=["name"])
        assert [r["name"] for r in dataset.__getitems__(range(len(dataset)))] == both


def test_a_pickled_copy_leaves_cache_and_files_behind(path: Path) -> None:
    dataset = ParquetDataset(path, decode={"image": decode_image}, keep_decoded=True)
    dataset.__getitems__(list(range(ROWS)))
    frozen = pickle.dumps(dataset)
    assert len(frozen) < 10_000
    assert torch.equal(pickle.loads(frozen)[5]["image"], dataset[5]["image"])


def test_loader_processes_read_the_same_rows(path: Path) -> None:
    dataset = ParquetDataset(path, columns=["label", "name"])
    dataset[0]  # an open file and a cached group that the forked children must not share
    loader = DataLoader(dataset, batch_size=6, num_workers=2, collate_fn=collate)
    names = [name for batch in loader for name in batch["name"]]
    assert names == [f"row {n}" for n in range(ROWS)]


def test_threads_read_the_same_rows(path: Path) -> None:
    dataset = ParquetDataset(path, columns=["label"], cache_bytes=1)
    found: dict[int, list[int]] = {}

    def read(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(ROWS).tolist()
        found[seed] = [got - n % 10 for got, n in zip(labels(dataset, order), order, strict=True)]

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert found == {seed: [0] * ROWS for seed in range(8)}


def test_a_broken_image_and_a_null_name_column_and_row(tmp_path: Path) -> None:
    broken = pa.table({"image": pa.array([png(1), b"no image"]), "label": pa.array([1, None], pa.uint8())})
    pq.write_table(broken, tmp_path / "x.parquet")
    with pytest.raises(RowUnreadable, match="column 'image' of row 1"):
        ParquetDataset(tmp_path / "x.parquet", columns=["image"], decode={"image": decode_image})[1]
    with pytest.raises(RowUnreadable, match="column 'label' of row 1 cannot be read: it is null"):
        ParquetDataset(tmp_path / "x.parquet", columns=["label"])[1]


def test_wrong_paths_and_columns_are_refused_at_once(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not exist$"):
        ParquetDataset(tmp_path / "absent.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no Parquet file"):
        ParquetDataset(tmp_path / "empty")
    with pytest.raises(KeyError, match="no column"):
        ParquetDataset(path, columns=["pixels"])
    with pytest.raises(KeyError, match="decode names"):
        ParquetDataset(path, columns=["label"], decode={"image": decode_image})
    pq.write_table(pa.table({"other": [1]}), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="differ"):
        ParquetDataset([path, tmp_path / "c.parquet"])


def test_an_image_of_hugging_face_is_decoded_as_its_bytes_are(tmp_path: Path) -> None:
    images = [{"bytes": png(1), "path": None}, {"bytes": None, "path": "/far/away.png"}]
    pq.write_table(pa.table({"image": images}), tmp_path / "x.parquet")
    dataset = ParquetDataset(tmp_path / "x.parquet", decode={"image": decode_image})
    assert torch.equal(dataset[0]["image"], decode_image(png(1)))
    with pytest.raises(RowUnreadable, match=r"column 'image' of row 1.*'/far/away\.png'"):
        dataset[1]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.array([[1.0], [2.0, None]]), "column 'x' of row 1 cannot be read: there is a null in its list"),
        (pa.array([[[1], [2]], [[1, 2], [3]]]), "column 'x' of row 1 cannot be read: expected sequence"),
        (
            pa.Array.from_buffers(
                pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xe9")]
            ),
            "column 'x' of row 1 cannot be read: its text is not UTF-8",
        ),
    ],
)
def test_a_value_that_makes_no_tensor_or_text_is_named_by_column_and_row(
    values: pa.Array, says: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"x": values}), tmp_path / "x.parquet")
    dataset = ParquetDataset(tmp_path / "x.parquet")
    with pytest.raises(RowUnreadable, match=says):
        dataset[1]
    with pytest.raises(RowUnreadable, match=says):
        dataset.batch([0, 1])


def test_texts_that_polars_writes_are_texts(tmp_path: Path) -> None:
    views = {"text": pa.array(["ab", "c"], pa.string_view()), "raw": pa.array([b"d", b"e"], pa.binary_view())}
    pq.write_table(pa.table(views), tmp_path / "x.parquet")
    dataset = ParquetDataset(tmp_path / "x.parquet")
    assert dataset[1] == {"text": "c", "raw": b"e"}
    assert dataset.batch([1, 0]) == {"text": ["c", "ab"], "raw": [b"e", b"d"]}


def test_lists_of_booleans_are_tensors_row_by_row(tmp_path: Path) -> None:
    masks = [[True, False, True], [False, False, True]]
    columns = {
        "mask": pa.array(masks),
        "fixed": pa.array([[m] for m in masks], pa.list_(pa.list_(pa.bool_(), 3))),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    dataset, wanted = ParquetDataset(tmp_path / "x.parquet"), torch.tensor([masks[1], masks[0]])
    assert dataset.by_column()
    for batch in (dataset.batch([1, 0]), collate(dataset.__getitems__([1, 0]))):
        assert torch.equal(batch["mask"], wanted)
        assert torch.equal(batch["fixed"], wanted[:, None])


def test_two_columns_of_one_name_are_refused_where_they_are_read(tmp_path: Path) -> None:
    three = [pa.array([1]), pa.array([2]), pa.array([3])]
    pq.write_table(pa.table(three, names=["a", "a", "b"]), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="has several columns 'a'"):
        ParquetDataset(tmp_path / "x.parquet")
    assert ParquetDataset(tmp_path / "x.parquet", columns=["b"])[0] == {"b": 3}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"x": torch.zeros(2)}, {"x": torch.zeros(3)}], r"'x' has the shapes \(2,\) and \(3,\)"),
        ([{"x": 1, "at": date(2026, 1, 1)}], "'at': default_collate: .*datetime.date"),
        ([{"x": 1, "y": 2}, {"x": 1}], "'y' is not in all of them"),
        ([{"x": 1 << 63}], "'x': Overflow"),
        ([torch.zeros(2), torch.zeros(3)], "stack expects"),
    ],
)
def test_rows_that_do_not_stack_are_refused_with_a_way_out(rows: list[Any], says: str) -> None:
    with pytest.raises(DatasetUnsupported, match=f"{says}.*pass your own collate"):
        collate(rows)
