"""File systems by URI: those of fsspec beside pyarrow's, and what is said where there is none."""

import http.server
import io
import os
import pickle
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import aiohttp
import fsspec
import fsspec.config
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from ringleader.data import ParquetDataset
from ringleader.data.sources.arrow import ArrowSource
from ringleader.data.sources.jsonl import JsonlSource
from ringleader.data.sources.mds import MdsSource
from ringleader.data.sources.parquet import ParquetSource
from ringleader.data.sources.source import Source
from ringleader.data.sources.webdataset import WebDatasetSource
from ringleader.data.unreadable import BlockUnreadable, FileUnreadable
from ringleader.data.uris import SILENCE_S, VARIABLES, UriUnusable, filesystem_of, hint_for

SILENCE = 0
"""In place of an answer's number: none comes."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, in ranges, for who has the word; a site that its test may have answer otherwise."""

    answer = 200
    ended = threading.Event()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.answer == SILENCE:
            self.ended.wait()
            return
        if self.answer != 200 or ("secret" in self.path and self.headers["Authorization"] != "Bearer word"):
            self.send_error(403 if self.answer == 200 else self.answer)
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
        Quiet.ended.set()
        server.shutdown()
        thread.join()
    Quiet.answer = 200
    Quiet.ended.clear()


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


KINDS: dict[str, Callable[[str], Source]] = {
    "parquet": lambda site: ParquetSource(f"{site}/a.parquet"),
    "jsonl": lambda site: JsonlSource(f"{site}/a.jsonl"),
    "arrow": lambda site: ArrowSource(f"{site}/a.arrow"),
    "webdataset": lambda site: WebDatasetSource(f"{site}/a.tar"),
    "mds": MdsSource,
}
ANSWERS = {401: "credentials", 403: "credentials", 500: "The server failed", 503: "The server failed"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_refuses_or_fails_is_told_from_a_file_that_is_not_there(
    kind: str, answer: int, site: str
) -> None:
    Quiet.answer = answer
    with pytest.raises(FileUnreadable, match=rf"{site}/\S+ cannot be read: {answer}") as told:
        KINDS[kind](site)
    assert ANSWERS[answer] in told.value.hint
    Quiet.answer = 404
    with pytest.raises((FileUnreadable, FileNotFoundError), match=rf"{site}.*(not exist|has no index)"):
        KINDS[kind](site)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (401, "credentials"),
        (500, "The server failed"),
        (404, "do not change files"),
        (SILENCE, "reaches that address"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_a_block_that_a_server_no_longer_gives_is_named(
    kind: str, answer: int, hint: str, tmp_path: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 60, 2 << 20)  # 16 MiB, of which fsspec reads 5 ahead
    pq.write_table(pa.table({"x": numbers}), tmp_path / "a.parquet", row_group_size=1 << 20)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in "ab":
            info = tarfile.TarInfo(f"{name}.bin")
            info.size = 8 << 20
            tar.addfile(info, io.BytesIO(numbers.tobytes()))
    source = KINDS[kind](site) if kind == "parquet" else WebDatasetSource(f"{site}/a.tar", block_samples=1)
    Quiet.answer = answer
    if answer == SILENCE:  # whoever opens the file now gives it up soon
        impatient = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=0.2)}}
        monkeypatch.setitem(fsspec.config.conf, "http", impatient)
        source = pickle.loads(pickle.dumps(source))
    with pytest.raises(
        BlockUnreadable, match=rf"{site}/a.*(row group 1|samples b to b) cannot be read"
    ) as told:
        source.read(1, None)
    assert hint in told.value.hint
    Quiet.answer = 200


def test_a_web_server_may_be_silent_for_a_while_and_no_longer(site: str) -> None:
    filesystem, _ = filesystem_of(f"{site}/a.parquet")
    timeout = filesystem.handler.fs.client_kwargs["timeout"]
    assert (timeout.sock_read, timeout.sock_connect, timeout.total) == (SILENCE_S, SILENCE_S, None)


@pytest.mark.parametrize(
    ("uri", "limit_s"),
    [
        ("gs://anonymous@bucket/a", SILENCE_S),
        ("gcs://anonymous@bucket/a?scheme=https", SILENCE_S),
        ("gs://anonymous@bucket/a?retry_limit_seconds=3", 3.0),
    ],
)
def test_googles_storage_is_tried_again_for_a_while_and_no_longer(uri: str, limit_s: float) -> None:
    filesystem, path = filesystem_of(uri)
    _, (options,) = filesystem.__reduce__()
    assert path == "bucket/a"
    assert options["retry_time_limit"].total_seconds() == limit_s


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


def test_a_bucket_that_refuses_is_named_with_what_is_missing(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "wrong")
    address = site.removeprefix("http://")
    uri = f"s3://secret/a.parquet?endpoint_override={address}&scheme=http&region=x"
    with pytest.raises(
        FileUnreadable, match=r"s3://secret/a.parquet.* cannot be read: .*ACCESS_DENIED"
    ) as told:
        ParquetDataset(uri)
    assert "credentials" in told.value.hint


def test_hints_tell_refusals_from_networks() -> None:
    refused = OSError("When getting information: AWS Error ACCESS_DENIED during HeadObject")
    assert "credentials" in hint_for(refused, "s3://a/b")
    assert "reaches that address" in hint_for(OSError("curlCode: 6, Couldn't resolve host name"), "s3://a")
    assert "reaches that address" in hint_for(ConnectionRefusedError(111, "refused"), "https://a")
    assert "Check the path" in hint_for(FileNotFoundError("a"), "/a")
    assert "server failed" in hint_for(
        OSError("AWS Error UNKNOWN (HTTP status 500) during HeadObject"), "s3://a"
    )


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("s3://bucket/a.parquet, row group 3", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/a", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://bucket/a", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
        ("hf://datasets/a/b", "HF_TOKEN"),
        ("https://host/a", "FSSPEC_HTTP="),
        ("dropbox://a", "the variables that its file system reads"),
    ],
)
def test_a_refusal_names_the_variables_of_its_scheme_alone(place: str, names: str) -> None:
    hint = hint_for(PermissionError("Forbidden"), place)
    assert f"as secrets of the job file ({names}" in hint
    assert [name for name in VARIABLES if name in hint] == [name for name in VARIABLES if names in name]


def test_a_local_file_that_is_not_ones_own_needs_no_credentials() -> None:
    hint = hint_for(PermissionError(13, "Permission denied"), "/data/a.parquet")
    assert hint == "Let the account of the job's processes read it on every node."


def test_a_web_server_gets_the_headers_that_its_refusal_asks_for(
    tmp_path: Path, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come with the secrets of a job, when fsspec is there already."""
    (tmp_path / "secret.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(FileUnreadable) as told:
        JsonlSource(f"{site}/secret.jsonl")
    asked = told.value.hint.partition("(")[2].partition(")")[0].replace("…", "Bearer word")
    monkeypatch.setitem(fsspec.config.conf, "http", {})
    monkeypatch.setenv(*asked.split("=", 1))
    assert JsonlSource(f"{site}/secret.jsonl").read(0, None).to_pylist() == [{"x": 1}]
    filesystem, _ = filesystem_of(f"{site}/secret.jsonl")
    assert filesystem.handler.fs.client_kwargs["timeout"].sock_read == SILENCE_S


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket with files of each kind, which it gives to those with a key."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    httpx.post(f"{endpoint}/moto-api/reset").raise_for_status()
    httpx.put(f"{endpoint}/own").raise_for_status()
    for name in ("a.parquet", "a.jsonl", "a.arrow", "a.tar", "index.json", "set/a.parquet"):
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
        httpx.put(f"{endpoint}/own/{name}", content=b"{}", headers=signed).raise_for_status()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    yield "s3://own"
    httpx.post(f"{endpoint}/moto-api/reset-auth", content=b"inf").raise_for_status()
    server.stop()


@pytest.mark.parametrize("place", ["set", "nothing"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_without_credentials_or_with_wrong_ones_says_what_to_set(
    kind: str, place: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(uri: str) -> FileUnreadable:
        with pytest.raises(FileUnreadable, match=rf"{uri}.* cannot be read: .*ACCESS_DENIED") as found:
            KINDS[kind](uri)
        return found.value

    assert "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)" in told(bucket).hint
    httpx.post(f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth", content=b"0").raise_for_status()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)" in told(f"s3://{place}").hint


class Hub(http.server.BaseHTTPRequestHandler):
    """The Hugging Face Hub, of which nobody has a token."""

    answer, error = 401, "RepoNotFound"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(self.answer)
        self.send_header("X-Error-Code", self.error)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_GET


OPENS_EACH_KIND = """
from test_data_uris import KINDS
for kind in KINDS.values():
    try:
        kind("hf://datasets/own/set")
    except Exception as error:
        print(error, "|", getattr(error, "hint", "Check the path"))
"""


@pytest.mark.parametrize(
    ("answer", "error", "says", "hint"),
    [
        (401, "RepoNotFound", "401", r"\(HF_TOKEN\)"),
        (403, "GatedRepo", "403", r"\(HF_TOKEN\)"),
        (500, "", "500", "The server failed"),
        (404, "RepoNotFound", "not exist|no index", "Check the path|Name the folder"),
        (None, "", "", "reaches that address"),
    ],
)
def test_the_hub_that_refuses_or_is_not_reached_is_told_from_a_set_that_is_not_there(
    answer: int | None, error: str, says: str, hint: str
) -> None:
    """In a process of its own: its library reads the address of the Hub once."""
    pytest.importorskip("huggingface_hub")
    Hub.answer, Hub.error = answer or 0, error
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        if answer is not None:
            thread.start()
        else:
            server.server_close()
        environ = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": ""}
        command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{OPENS_EACH_KIND}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        if answer is not None:
            server.shutdown()
            thread.join()
    told = [line.partition("|") for line in done.stdout.splitlines()]
    assert len(told) == len(KINDS), done.stderr
    for message, _, cure in told:
        assert "hf://datasets/own/set" in message
        assert re.search(says, message)
        assert re.search(hint, cure)
