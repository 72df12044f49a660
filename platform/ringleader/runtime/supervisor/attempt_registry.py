"""The record of attempts that have had a supervisor, on which node, and that are over: kept in the cluster, so that
none is run twice."""

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

_PREFIX = b"ringleader/attempt/"
_OVER = b"over"
_NODE = b"/node"


def claim(job_id: str, attempt: int) -> bool:
    """Whether the attempt is not over yet: only then its supervisor may begin or go on."""
    if _internal_kv_get(_key(job_id, attempt)) == _OVER:
        return False
    # Two steps are enough: by its name an attempt has one supervisor, so nobody comes in between.
    _internal_kv_put(_key(job_id, attempt), b"1", overwrite=True)
    return True


def give_up(job_id: str, attempt: int) -> None:
    """Record that the attempt is over: a supervisor that comes back to it has nothing to do."""
    _internal_kv_put(_key(job_id, attempt), _OVER, overwrite=True)


def claimed(job_id: str, attempt: int) -> bool:
    return _internal_kv_get(_key(job_id, attempt)) is not None


def settle(job_id: str, attempt: int, node: str) -> None:
    """Record the node on which the attempt's supervisor is to run."""
    _internal_kv_put(_key(job_id, attempt) + _NODE, node.encode(), overwrite=True)


def node_of(job_id: str, attempt: int) -> str:
    """The node on which the attempt's supervisor was to run; empty where this cluster has no record of it."""
    return (_internal_kv_get(_key(job_id, attempt) + _NODE) or b"").decode()


def forget(job_id: str) -> None:
    """Remove all records of a job, whose attempts nobody will ask for again."""
    _internal_kv_del(_of(job_id), del_by_prefix=True)


def _key(job_id: str, attempt: int) -> bytes:
    return _of(job_id) + str(attempt).encode()


def _of(job_id: str) -> bytes:
    # The slash ends the id: `forget` deletes by prefix, and must not reach a job whose id begins the same.
    return _PREFIX + f"{job_id}/".encode()
