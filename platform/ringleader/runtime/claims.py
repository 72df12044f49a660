"""Which attempts have had a supervisor, and which are over: written down in the cluster, so that none is run twice."""

from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

_PREFIX = b"ringleader/attempt/"


_OVER = b"over"


def claim(job_id: str, attempt: int) -> bool:
    """Whether the attempt is not over yet: only then its supervisor may begin or go on."""
    if _internal_kv_get(_key(job_id, attempt)) == _OVER:
        return False
    _internal_kv_put(_key(job_id, attempt), b"1", overwrite=True)
    return True


def give_up(job_id: str, attempt: int) -> None:
    """The attempt is over: who comes back to it has nothing to do."""
    _internal_kv_put(_key(job_id, attempt), _OVER, overwrite=True)


def claimed(job_id: str, attempt: int) -> bool:
    return _internal_kv_get(_key(job_id, attempt)) is not None


def _key(job_id: str, attempt: int) -> bytes:
    return _PREFIX + f"{job_id}/{attempt}".encode()
