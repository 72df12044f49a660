"""Which attempts have had a supervisor: written down in the cluster, so that none ever gets a second one."""

from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

_PREFIX = b"ringleader/attempt/"


def claim(job_id: str, attempt: int) -> None:
    _internal_kv_put(_key(job_id, attempt), b"1", overwrite=True)


def claimed(job_id: str, attempt: int) -> bool:
    return _internal_kv_get(_key(job_id, attempt)) is not None


def _key(job_id: str, attempt: int) -> bytes:
    return _PREFIX + f"{job_id}/{attempt}".encode()
