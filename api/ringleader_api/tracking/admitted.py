"""The part of MLflow that the proxy lets through: its page, and the records of tracking. Nothing else.

MLflow serves more beside it than tracking: an assistant that runs commands on the machine, a gateway that asks any
host, jobs, webhooks. What it comes to serve with its next version is closed until somebody has looked at it here.
"""

from urllib.parse import unquote

_ALONE = {"", "get-artifact", "graphql", "health", "version"}
_RECORDS = {
    "2.0": {
        "artifacts",
        "experiments",
        "get-trace-artifact",
        "logged-models",
        "metrics",
        "model-versions",
        "registered-models",
        "runs",
        "traces",
        "upload-artifact",
    },
    "3.0": {"datasets", "get-trace-artifact", "server-info", "traces"},
}
"""By version of the interface, the names that follow `/mlflow/`."""
_NO_RECORD = {"create-promptlab-run"}
"""An address among those of runs that packs a model instead of keeping a record."""


def admitted(path: str) -> bool:
    """Whether a path below MLflow's prefix, still encoded, leads to its page or to records."""
    match _segments(path):
        case [word]:
            return word in _ALONE
        case ["static-files", *_] | ["model-versions", "get-artifact"]:
            return True
        case ["api" | "ajax-api", "2.0", "mlflow-artifacts", *_]:
            return True
        case ["api" | "ajax-api", version, "mlflow", what, *rest]:
            return what in _RECORDS.get(version, ()) and _NO_RECORD.isdisjoint(rest)
    return False


def _segments(path: str) -> list[str]:
    """The path's parts as MLflow sees them; none where a server on the way could take it for another path."""
    parts = unquote(path).split("/")
    odd = "#" in path or "\\" in path or "" in parts[:-1]
    # Decoded twice: a server behind ours that decodes once more must not find a way up there.
    return [] if odd or {".", ".."} & set(unquote("/".join(parts)).split("/")) else parts
