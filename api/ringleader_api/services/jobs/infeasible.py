"""Refusal of a job that the cluster can never hold: the key that asks for too much, and how much there is."""

from collections.abc import Sequence
from dataclasses import replace

from ringleader.spec import JobSpec
from ringleader_api.problems import Unprocessable, wrong_key
from ringleader_api.scheduling import Claim, NodeShape, Seen, WorkerNeed, count_of, fits, most, reaches
from ringleader_api.services.jobs.claims import claim_of_spec

UNITS = {"gpus": "GPUs", "cpus": "CPUs", "memory_gb": "GB"}
"""The resources of a worker, the rarest first."""
NO_GPUS = (
    "Leave out workers.gpus and workers.device to train on CPUs. workers.device: auto reserves a GPU, too; it "
    "falls back to the CPU only where torch finds no CUDA device on a node with GPUs."
)


def placeable(spec: JobSpec, seen: Seen) -> None:
    """Raise Unprocessable where the cluster can never hold `workers.min` and the servers, however far it grows."""
    claim = claim_of_spec("", spec)
    if _ever_holds(seen, claim):
        return
    _each_fits("workers", claim.need, seen)
    if claim.servers and claim.server_need is not None:
        _each_fits("servers", claim.server_need, seen)
    raise _too_many(claim, seen)


def _ever_holds(seen: Seen, claim: Claim) -> bool:
    return fits(seen.nodes, claim) or reaches(seen.reach, claim)


def _each_fits(part: str, need: WorkerNeed, seen: Seen) -> None:
    """Refuse a single worker that fits on no node. Of the nodes with enough of one resource the next is checked."""
    if _ever_holds(seen, Claim("", need, 1, 1)):
        return
    nodes: Sequence[NodeShape] = seen.nodes
    for key, unit in UNITS.items():
        wanted, grows_to = getattr(need, key), getattr(seen.reach, key, 0.0)
        there = max([grows_to, *(getattr(node, key) for node in nodes)])
        if wanted > there:
            raise _too_large(part, key, wanted, f"{there:g} {unit}", seen)
        # Each resource among the nodes that have enough of those before: a GPU node may lack the memory.
        nodes = [node for node in nodes if getattr(node, key) >= wanted]


def _too_large(part: str, key: str, wanted: float, there: str, seen: Seen) -> Unprocessable:
    one = part.removesuffix("s")
    without = key == "gpus" and there == "0 GPUs"
    return wrong_key(
        f"/{part}/{key}",
        # As the job file has it: a claim may have made 4.0 of its 4.
        int(wanted) if float(wanted).is_integer() else wanted,
        f"at most {there}" + _further(seen),
        f"is more than a {one} can get: "
        + ("no node has a GPU" if without else f"a node has at most {there}"),
        code="infeasible",
        hint=NO_GPUS
        if without and part == "workers"
        else f"Ask for less for each {one}, or add a larger node.",
    )


def _too_many(claim: Claim, seen: Seen) -> Unprocessable:
    needs = f"workers.min {claim.floor} × ({claim.need})"
    if claim.servers:
        needs += f", servers {claim.servers} × ({claim.server_need})"
    message = f"is more than the cluster can ever hold: the job needs {needs}"
    if claim.servers and _ever_holds(seen, replace(claim, servers=0)):
        pointer, value, allowed = (
            "/servers/count",
            claim.servers,
            "what fits on this cluster besides the workers",
        )
    else:
        fitting = most(seen.nodes, claim.need)
        pointer, value = "/workers/min", claim.floor
        allowed = f"at most {count_of(fitting, 'worker')} of {claim.need} on this cluster"
    return wrong_key(pointer, value, allowed + _further(seen), message, code="infeasible")


def _further(seen: Seen) -> str:
    return f"; the cluster can grow to {seen.reach}" if seen.reach else ""
