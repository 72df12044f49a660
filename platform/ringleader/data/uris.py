"""File systems by URI: pyarrow's own, and through fsspec those that it lacks (`hf://`, `https://`, `az://`)."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from ringleader.errors import RingleaderError

PYARROW_SCHEMES = frozenset({"abfs", "abfss", "file", "gcs", "gs", "hdfs", "mock", "s3", "viewfs"})
PACKAGES = {"hf": "huggingface_hub", "az": "adlfs", "http": "aiohttp", "https": "aiohttp"}
"""By scheme, the package that fsspec needs for it, where its own error does not say."""
_REFUSED = re.compile(
    r"access.?denied|forbidden|unauthorized|credential|\b40[13]\b|no token|gated", re.IGNORECASE
)
_UNREACHABLE = re.compile(
    r"connect|resolve host|curlCode|timed? ?out|timeout|name or service|network|unreachable", re.IGNORECASE
)
_FAILED = re.compile(
    r"server error|service unavailable|bad gateway|gateway time|slow.?down|too many requests", re.IGNORECASE
)
GONE = frozenset({404, 410})
"""Answers of web servers that there is no such file."""
GOOGLES = frozenset({"gcs", "gs"})
WEB = frozenset({"http", "https"})
SILENCE_S = 60.0
"""A server that sends nothing for so long has failed."""


class UriUnusable(RingleaderError):
    """There is no file system for a URI, or its package is not installed."""

    code = "entrypoint_raised"

    def __init__(self, uri: str, why: str, hint: str) -> None:
        super().__init__(f"{uri} cannot be read: {why}.", hint=hint)


def filesystem_of(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI, and the path there.

    Raises:
        UriUnusable: an unknown scheme, a package that is missing, no credentials, no network.
    """
    scheme = uri.partition("://")[0]
    try:
        if scheme in PYARROW_SCHEMES:
            filesystem, path = pafs.FileSystem.from_uri(_bounded(scheme, uri))
            return filesystem, path
        return _through_fsspec(scheme, uri)
    except UriUnusable:
        raise
    except Exception as error:  # of whatever kind: each file system has its own
        raise UriUnusable(uri, said(error), hint_for(error)) from error


def said(error: BaseException) -> str:
    """The message of an error, in one line without its full stop; of one that says nothing its kind."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def hint_for(error: Exception, otherwise: str = "Check the path, and that every node can read it.") -> str:
    """The hint for an error of a file system; `otherwise` where it is about the file alone."""
    text = f"{type(error).__name__} {error}"
    if isinstance(error, PermissionError) or _REFUSED.search(text):
        return (
            "Give the job's processes credentials that may read it, as secrets of the job file "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME "
            "and AZURE_STORAGE_ACCOUNT_KEY, HF_TOKEN)."
        )
    if _FAILED.search(text):
        return "The server failed, not the file: try again later. What the job has committed stays."
    if isinstance(error, ConnectionError | TimeoutError) or _UNREACHABLE.search(text):
        return (
            "Check that every node reaches that address, and any proxy or endpoint that its variables name."
        )
    return otherwise


def _bounded(scheme: str, uri: str) -> str:
    """The URI, of Google's storage with a bound on how long it is tried again; as it is where it has one."""
    if scheme not in GOOGLES or "retry_limit_seconds=" in uri:
        return uri
    # By default for a quarter of an hour, without a word, also where there is no network.
    return f"{uri}{'&' if '?' in uri else '?'}retry_limit_seconds={SILENCE_S:.0f}"


def _through_fsspec(scheme: str, uri: str) -> tuple[pafs.FileSystem, str]:
    try:
        import fsspec
        import fsspec.core

        fsspec.get_filesystem_class(scheme)
        filesystem, path = fsspec.core.url_to_fs(uri, **_options(scheme))
    except ImportError as error:
        package = PACKAGES.get(scheme, "the package that its message names")
        raise UriUnusable(
            uri,
            f"{scheme}:// needs a package that is not installed ({said(error)})",
            f"Name it in the job's requirements: {package}.",
        ) from error
    except ValueError as error:
        if scheme in fsspec.available_protocols():
            raise
        known = ", ".join(f"{name}://" for name in sorted({*PYARROW_SCHEMES - {"mock"}, *PACKAGES}))
        raise UriUnusable(uri, f"no file system is known for {scheme}://", f"Known: {known}.") from error
    handler = _WebHandler if scheme in WEB else pafs.FSSpecHandler
    return pafs.PyFileSystem(handler(filesystem)), path


def _options(scheme: str) -> dict[str, Any]:
    """A bound on the silence of web servers; not where fsspec's own configuration says something."""
    if scheme not in WEB:
        return {}
    import aiohttp
    import fsspec.config

    if "client_kwargs" in fsspec.config.conf.get(scheme, {}):
        return {}
    # On silence and not on the whole, as by default: that lasts five minutes for each request, and cuts off large files
    # that take longer.
    return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_connect=SILENCE_S, sock_read=SILENCE_S)}}


class _WebHandler(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """Files of web servers. Whatever a server answers, and where it does not, fsspec says that there is no such file;
    here the answer is told."""

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def open_input_file(self, path: str) -> pa.PythonFile:
        with _told():
            return pa.PythonFile(self.fs.open(path, mode="rb"), mode="r")

    def _info(self, path: str) -> pafs.FileInfo:
        try:
            with _told():
                found = self.fs.info(path)
        except FileNotFoundError:
            return pafs.FileInfo(path, pafs.FileType.NotFound)
        kind = pafs.FileType.File if found["type"] == "file" else pafs.FileType.Directory
        return pafs.FileInfo(path, kind, size=found["size"])


@contextmanager
def _told() -> Iterator[None]:
    """Raise the answer that was taken for a file that is not there, where it is another one, as an OSError."""
    try:
        yield
    except FileNotFoundError as error:
        answer = error.__cause__
        if answer is None or getattr(answer, "status", None) in GONE:
            raise
        # Not a file that is missing: whoever asks would leave it out, or say that it was never there.
        raise OSError(said(answer)) from error
