"""File systems by URI: pyarrow's own, and through fsspec those that it lacks (`hf://`, `https://`, `az://`)."""

import re

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
            filesystem, path = pafs.FileSystem.from_uri(uri)
            return filesystem, path
        return _through_fsspec(scheme, uri)
    except UriUnusable:
        raise
    except Exception as error:  # of whatever kind: each file system has its own
        raise UriUnusable(uri, said(error), hint_for(error)) from error


def said(error: Exception) -> str:
    """The message of an error, in one line without its full stop; of one that says nothing its kind."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def hint_for(error: Exception) -> str:
    """The hint for an error of a file system."""
    text = f"{type(error).__name__} {error}"
    if isinstance(error, PermissionError) or _REFUSED.search(text):
        return (
            "Give the job's processes credentials that may read it, as secrets of the job file "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME "
            "and AZURE_STORAGE_ACCOUNT_KEY, HF_TOKEN)."
        )
    if isinstance(error, ConnectionError | TimeoutError) or _UNREACHABLE.search(text):
        return (
            "Check that every node reaches that address, and any proxy or endpoint that its variables name."
        )
    return "Check the path, and that every node can read it."


def _through_fsspec(scheme: str, uri: str) -> tuple[pafs.FileSystem, str]:
    try:
        import fsspec
        import fsspec.core

        fsspec.get_filesystem_class(scheme)
        filesystem, path = fsspec.core.url_to_fs(uri)
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
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path
