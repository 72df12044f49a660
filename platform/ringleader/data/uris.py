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
VARIABLES = {
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY": ("s3",),
    "GOOGLE_APPLICATION_CREDENTIALS": ("gs", "gcs"),
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY": ("abfs", "abfss", "az"),
    "HF_TOKEN": ("hf",),
    'FSSPEC_HTTP={"client_kwargs": {"headers": {"Authorization": "…"}}}': ("http", "https"),
}
"""The variables with credentials, and the schemes whose file systems read them."""
_REFUSED = re.compile(
    r"access.?denied|forbidden|unauthorized|credential|\b40[13]\b|no token|gated", re.IGNORECASE
)
_UNREACHABLE = re.compile(
    r"connect|resolve host|curlCode|timed? ?out|timeout|name or service|network|unreachable", re.IGNORECASE
)
_FAILED = re.compile(
    r"server error|service unavailable|bad gateway|gateway time|slow.?down|too many requests|HTTP status 5\d\d",
    re.IGNORECASE,
)
GONE = frozenset({404, 410})
"""Answers of web servers that there is no such file."""
GOOGLES = frozenset({"gcs", "gs"})
WEB = frozenset({"http", "https"})
ANSWERING = WEB | {"hf"}
"""The schemes of which fsspec takes a refusal for a file that is not there."""
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
        raise UriUnusable(uri, said(error), hint_for(error, uri)) from error


def said(error: BaseException) -> str:
    """The message of an error, in one line without its full stop; of one that says nothing its kind."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def hint_for(
    error: Exception, place: str, otherwise: str = "Check the path, and that every node can read it."
) -> str:
    """The hint for an error of a file system; `otherwise` where it is about the file alone.

    Args:
        place: a path or URI, or words that begin with one.
    """
    text = f"{type(error).__name__} {error}"
    if isinstance(error, PermissionError) or _REFUSED.search(text):
        return _credentials_for(place)
    if _FAILED.search(text):
        return "The server failed, not the file: try again later. What the job has committed stays."
    if isinstance(error, ConnectionError | TimeoutError) or _UNREACHABLE.search(text):
        return (
            "Check that every node reaches that address, and any proxy or endpoint that its variables name."
        )
    return otherwise


def _credentials_for(place: str) -> str:
    scheme, is_uri, _ = place.partition("://")
    if not is_uri or scheme == "file":
        return "Let the account of the job's processes read it on every node."
    known = [names for names, schemes in VARIABLES.items() if scheme in schemes]
    names = known[0] if known else "the variables that its file system reads"
    return f"Give the job's processes credentials that may read it, as secrets of the job file ({names})."


def _bounded(scheme: str, uri: str) -> str:
    """The URI, of Google's storage with a bound on how long it is tried again; as it is where it has one."""
    if scheme not in GOOGLES or "retry_limit_seconds=" in uri:
        return uri
    # By default for a quarter of an hour, without a word, also where there is no network.
    return f"{uri}{'&' if '?' in uri else '?'}retry_limit_seconds={SILENCE_S:.0f}"


def _through_fsspec(scheme: str, uri: str) -> tuple[pafs.FileSystem, str]:
    try:
        import fsspec
        import fsspec.config
        import fsspec.core

        # Whoever imported it before has read its variables before the job's secrets were there.
        fsspec.config.set_conf_env(fsspec.config.conf)
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
    handler = _WebHandler if scheme in ANSWERING else pafs.FSSpecHandler
    return pafs.PyFileSystem(handler(filesystem)), path


def _options(scheme: str) -> dict[str, Any]:
    """A bound on the silence of web servers, beside what fsspec's own configuration says."""
    if scheme not in WEB:
        return {}
    import aiohttp
    import fsspec.config

    theirs: dict[str, Any] = {}
    for name in sorted(WEB):
        theirs |= fsspec.config.conf.get(name, {}).get("client_kwargs", {})
    # On silence and not on the whole, as by default: that lasts five minutes for each request, and cuts off large files
    # that take longer.
    silence = aiohttp.ClientTimeout(sock_connect=SILENCE_S, sock_read=SILENCE_S)
    return {"client_kwargs": {"timeout": silence} | theirs}


class _WebHandler(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """Files of web servers, and of the Hugging Face Hub. Whatever a server answers, and where it does not, fsspec says
    that there is no such file; here the answer is told."""

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
        if answer is None or _status_of(answer) in GONE:
            raise
        # Not a file that is missing: whoever asks would leave it out, or say that it was never there.
        raise OSError(said(answer)) from error


def _status_of(answer: BaseException) -> int | None:
    """The number of a server's answer, of a web server or of the Hub; None where there was none."""
    response = getattr(answer, "response", None)
    found: int | None = getattr(response, "status_code", getattr(answer, "status", None))
    return found
