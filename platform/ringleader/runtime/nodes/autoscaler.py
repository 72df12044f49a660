"""Ray's autoscaler: the demand that it is told, and the reasons why nodes do not come."""

import json
from collections.abc import Mapping

from ray._private.ray_constants import DEBUG_AUTOSCALING_ERROR, DEBUG_AUTOSCALING_STATUS
from ray.autoscaler.sdk import request_resources
from ray.experimental.internal_kv import _internal_kv_get, internal_kv_get_gcs_client

from ringleader.runtime.nodes.layout import RAY_UNITS, Amounts

MOST_WORDS = 300


def ask(demand: Mapping[Amounts, int]) -> None:
    """Request nodes until all these bundles would fit on the cluster at once, whatever runs there.

    The request is one value for the whole cluster, which each call replaces (ray-project/ray#13534), and which outlives
    the caller: nothing else may call this, and an empty demand withdraws it.
    """
    request_resources(bundles=[_bundle(amounts) for amounts, count in demand.items() for _ in range(count)])


def trouble() -> str:
    """The autoscaler's own reason for its last failure to start nodes; empty where it gives none."""
    return (_launches() or _refusals() or (_text(DEBUG_AUTOSCALING_ERROR)))[:MOST_WORDS]


def _bundle(amounts: Amounts) -> dict[str, float]:
    return {name: value / RAY_UNITS[name] for name, value in zip(RAY_UNITS, amounts, strict=True) if value}


def _launches() -> str:
    """The failed launches that the autoscaler's second version reports; empty under the first."""
    from ray.autoscaler.v2.sdk import get_cluster_status
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    if not is_autoscaler_v2():
        return ""
    failed = get_cluster_status(internal_kv_get_gcs_client().address).failed_launches
    return "; ".join(f"{launch.ray_node_type_name}: {launch.details}" for launch in failed)


def _refusals() -> str:
    """The node types that the provider of its first version could not give."""
    return refusals(_text(DEBUG_AUTOSCALING_STATUS))


def refusals(status: str) -> str:
    """The unavailable node types with the reasons, from the autoscaler's status as JSON. That is written for people:
    where it is not as expected, the answer is empty."""
    try:
        found = json.loads(status)["autoscaler_report"]["node_availability_summary"]["node_availabilities"]
        why = {name: record["unavailable_node_information"] for name, record in found.items()}
        return "; ".join(f"{name}: {said['description']}" for name, said in why.items() if said)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _text(key: str) -> str:
    return (_internal_kv_get(key) or b"").decode(errors="replace")
