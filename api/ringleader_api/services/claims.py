"""What a job claims from the cluster, for admission and preview."""

from ringleader.spec import JobSpec
from ringleader_api.scheduling import Claim, Need


def claim_of(job_id: str, spec: JobSpec, world_size: int = 0) -> Claim:
    """A running job claims what it may grow to: it will, as soon as there is room."""
    workers = spec.workers
    return Claim(
        job_id=job_id,
        need=Need(workers.cpus, workers.gpus, workers.memory_gb),
        floor=workers.min,
        holds=max(workers.max, world_size),
    )
