"""The source of a job's workers above `workers.min`, in words, as this cluster is."""

from collections.abc import Mapping
from typing import Any

from ringleader.spec.workers import Autoscale, Workers

NO_EFFECT = "autoscale: {{surplus: true}} has no effect: workers.min and workers.max are both {}"


def surplus_told(spec: Mapping[str, Any], *, grows: bool) -> str:
    """Describe it for a stored job file of whatever version; empty where there are no such workers, and none are asked
    for.

    Args:
        grows: whether the cluster does.
    """
    workers = spec.get("workers", {})  # the first version stored what its user had written
    if not {"min", "max"} <= workers.keys():
        return ""
    workers_min, workers_max = workers["min"], workers["max"]
    autoscale = Autoscale.model_construct(surplus=spec.get("autoscale", {}).get("surplus", False))
    if workers_min == workers_max:
        return NO_EFFECT.format(workers_min) if autoscale.surplus else ""
    return autoscale.told(Workers.model_construct(min=workers_min, max=workers_max), grows=grows)
