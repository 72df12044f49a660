"""File systems by URI: those of fsspec beside pyarrow's, and what is said where there is none."""

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringleader.data import ParquetDataset
from ringleader.data.sources.jsonl import JsonlSource
from ringleader.data.unreadable import FileUnreadable
from ringleader.data.uris import UriUnusable, filesystem_of, hint_for


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, in ranges, for who has the word."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if "secret" in self.path:
            self.send_error(403)
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        asked = self.headers.get("Range")
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    do_HEAD = do_GET


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_files_are_read_over_http(tmp_path: Path, site: str) -> None:
    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "a.parquet", row_group_size=30)
    dataset = ParquetDataset(f"{site}/a.parquet")
    assert [dataset[n]["x"] for n in (99, 0, 31)] == [99, 0, 31]
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    assert JsonlSource(f"{site}/a.jsonl").read(0, None).to_pylist() == [{"x": 1}, {"x": 2}]


def test_a_file_that_is_not_there_or_not_given_is_named(site: str) -> None:
    for name in ("none.jsonl", "secret.jsonl"):
        with pytest.raises(FileUnreadable, match=rf"{site}/{name} cannot be read"):
            JsonlSource(f"{site}/{name}")


def test_folders_of_fsspec_are_listed() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/a/set/1.jsonl", b'{"x": 1}\n')
    memory.pipe("/a/set/0.jsonl", b'{"x": 0}\n')
    source = JsonlSource("memory://a/set")
    assert [source.read(n, None).to_pylist() for n in range(2)] == [[{"x": 0}], [{"x": 1}]]


def test_an_unknown_scheme_names_those_that_are_known() -> None:
    with pytest.raises(UriUnusable, match=r"no file system is known for nowhere://\. Known: .*hf://.*s3://"):
        filesystem_of("nowhere://bucket/a")


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(
        UriUnusable, match=r"az:// needs a package that is not installed .*requirements: adlfs"
    ):
        filesystem_of("az://container/a")


def test_hints_tell_refusals_from_networks() -> None:
    assert "credentials" in hint_for(
        OSError("When getting information: AWS Error ACCESS_DENIED during HeadObject")
    )
    assert "credentials" in hint_for(PermissionError("Forbidden"))
    assert "reaches that address" in hint_for(OSError("curlCode: 6, Couldn't resolve host name"))
    assert "reaches that address" in hint_for(ConnectionRefusedError(111, "refused"))
    assert "Check the path" in hint_for(FileNotFoundError("a"))
