"""A job's metrics as TensorBoard's event file: framing, checksums, and each settled step once, however often asked."""

import random
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from math import inf, nan
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import anyio
import pytest
from anyio import Semaphore, create_task_group
from control_plane import FakeCluster, Stage, connected, metric, stage
from sqlalchemy import delete
from tensorboardX.proto.event_pb2 import Event

from ringleader.cli.main import main
from ringleader_api.problems import NotFound
from ringleader_api.reports.event_file import VERSION, Scalars, checksums, head, records
from ringleader_api.reports.tensorboard import event_file
from ringleader_api.routes.bodies.streamed import in_turn
from ringleader_api.store.tables import Metric


def masked(content: bytes) -> int:
    """The checksum bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(content: bytes) -> Iterator[Event]:
    """The events of a file, each checked."""
    while content:
        length = struct.unpack("<Q", content[:8])[0]
        of_length, body = struct.unpack("<I", content[8:12])[0], content[12 : 12 + length]
        (of_body,) = struct.unpack("<I", content[12 + length : 16 + length])
        assert (of_length, of_body) == (masked(content[:8]), masked(body))
        yield Event.FromString(body)
        content = content[16 + length :]


def scalars(content: bytes) -> list[tuple[str, int, float]]:
    """The values behind the head: name, step and value."""
    first, *others = events(content)
    assert first.file_version == VERSION
    return [(value.tag, one.step, value.simple_value) for one in others for value in one.summary.value]


def test_checksums_are_those_of_the_standard() -> None:
    # RFC 3720, appendix B.4, and the usual check value.
    known = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, b"123456789": 0xE3069283, b"": 0}
    mask = lambda crc: ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # noqa: E731
    assert checksums(list(known)) == [mask(crc) for crc in known.values()]
    draw = random.Random(5)
    parts = [draw.randbytes(draw.randrange(300)) for _ in range(40)]
    assert checksums(parts) == [masked(part) for part in parts]


def test_any_name_step_and_value_is_read_back() -> None:
    told = [
        Scalars(1700000000.125, 0, {"loss": 0.5, "grüße/<b>": -inf}),
        Scalars(1700000001.5, 1 << 40, {"n" * 250: 1e300, "x": nan}),
        Scalars(0.0, 127, {}),
    ]
    first, *others = events(head(1700000000.0) + records(told))
    assert (first.wall_time, first.file_version) == (1700000000.0, VERSION)
    for one, read in zip(told, others, strict=True):
        assert (read.wall_time, read.step) == (one.at, one.step)
        assert [value.tag for value in read.summary.value] == list(one.values)
    values = [value.simple_value for read in others for value in read.summary.value]
    assert values[:3] == [0.5, -inf, inf]
    assert values[3] != values[3]


def test_each_settled_step_stands_in_the_file_once_whatever_ran_again(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id, other = here.running(), here.running()
    here.post(other, records=[metric(1, 1, loss=7.0)])
    stored = {("loss", step): step / 8 for step in range(1, 601)} | {
        ("lr", step): 0.5 for step in range(1, 601)
    }
    for first in range(1, 601, 200):
        here.post(job_id, records=[metric(s, s, loss=s / 8, lr=0.5) for s in range(first, first + 200)])
    # A later attempt computes steps again, and one of them is a new one.
    again = [metric(1000 + step, step, loss=99.0) for step in range(500, 602)]
    here.post(job_id, records=again)
    stored["loss", 601] = 99.0
    found = scalars(exported(here, job_id))
    assert len(found) == len(stored)
    assert {(name, step): value for name, step, value in found} == stored
    assert exported(here, job_id) == exported(here, job_id)


def test_a_file_of_many_pages_has_every_value(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id = here.running()
    names = [f"m{n:02}" for n in range(30)]
    for first in range(1, 401, 100):
        steps = range(first, first + 100)
        here.post(job_id, records=[metric(s, s, **dict.fromkeys(names, float(s))) for s in steps])
    found = scalars(exported(here, job_id))
    assert sorted(found) == sorted(chain(*([(name, s, float(s)) for s in range(1, 401)] for name in names)))


def test_a_step_of_many_long_names_takes_no_more_memory_than_its_values() -> None:
    wide = {f"{n:03}{'n' * 200}": 1.0 for n in range(500)}
    told = [Scalars(0.0, 1, wide), *(Scalars(0.0, step, {"loss": 1.0}) for step in range(2, 1000))]
    records(told[:2])  # the table of checksums
    tracemalloc.start()
    content = records(told)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [one.step for one in events(content)] == [one.step for one in told]
    assert peak < 20 * len(content)


def test_many_metrics_of_a_step_are_several_events(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id = here.running()
    values = {f"m{n:03}": float(n) for n in range(250)}
    here.post(job_id, records=[metric(1, 1, **values), metric(2, 2, loss=1.0)])
    content = exported(here, job_id)
    assert sorted(scalars(content)) == sorted(
        [(name, 1, of) for name, of in values.items()] + [("loss", 2, 1.0)]
    )
    assert max(len(one.summary.value) for one in events(content)) == 100


def test_a_job_deleted_during_its_export_leaves_no_file_that_passes_for_whole(tmp_path: Path) -> None:
    here = stage(tmp_path, FakeCluster(16))
    job_id = here.running()
    here.post(job_id, records=[metric(1, 1, loss=1.0)])
    pieces = event_file(here.control.store, job_id).chunks()
    next(pieces)
    with here.control.store.write() as session:
        session.execute(delete(Metric).where(Metric.job_id == job_id))
    with pytest.raises(NotFound, match="deleted while"):
        list(pieces)


def test_however_many_export_at_once_one_piece_is_made_at_a_time() -> None:
    meeting = Barrier(2)
    met: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        for piece in (b"a", b"b"):
            # Two at work at a time meet here; one alone gives up.
            with suppress(BrokenBarrierError):
                meeting.wait(0.05)
                met.append(piece)
            meeting.reset()
            yield piece

    async def export(turn: Semaphore, found: list[bytes]) -> None:
        found += [piece async for piece in in_turn(pieces(), turn)]

    async def all_of_them() -> list[list[bytes]]:
        turn = Semaphore(1)
        found: list[list[bytes]] = [[] for _ in range(4)]
        async with create_task_group() as group:
            for one in found:
                group.start_soon(export, turn, one)
        return found

    assert anyio.run(all_of_them) == [[b"a", b"b"]] * 4
    assert met == []


def test_an_export_takes_the_place_of_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = stage(tmp_path / "home", FakeCluster(16))
    job_id = here.running()
    here.post(job_id, records=[metric(1, 1, loss=1.0)])
    folder = tmp_path / "runs"
    export = ["export", job_id, "--tensorboard", str(folder)]
    assert main(export, connect=lambda: connected(here)) == 0
    here.post(job_id, records=[metric(2, 2, loss=2.0)])
    assert main(export, connect=lambda: connected(here)) == 0
    (file,) = [one for one in folder.rglob("*") if one.is_file()]
    assert file.parent == folder / f"digits-{job_id}"
    assert "tfevents" in file.name
    assert scalars(file.read_bytes()) == [("loss", 1, 1.0), ("loss", 2, 2.0)]
    assert main(["export", job_id], connect=lambda: connected(here)) == 2
    assert main([*export, "--out", "x"], connect=lambda: connected(here)) == 2
    assert "expected one of --out" in capsys.readouterr().err


def exported(here: Stage, job_id: str) -> bytes:
    answer = here.client.get(f"/api/v1/jobs/{job_id}/tensorboard")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"].startswith('attachment; filename="events.out.tfevents.')
    return answer.content
