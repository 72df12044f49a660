"""/jobs/{id}/ingest and /jobs/{id}/secrets: a supervisor's records in, the secrets of its workers out, by its token."""

from fastapi import APIRouter, Response

from ringleader.wire.ingest import Acknowledged, Ingest, JobSecrets
from ringleader_api.problems import StaleAttempt
from ringleader_api.routes.bodies.bodies import RightsFirst
from ringleader_api.routes.dependencies import BySupervisor, Here, refusals

router = APIRouter(prefix="/jobs/{job_id}", tags=["ingest"], route_class=RightsFirst)


@router.post("/ingest", responses=refusals(400, 404, 409, 413, 422), summary="Store a supervisor's records")
def ingest(here: Here, who: BySupervisor, job_id: str, body: Ingest) -> Acknowledged:
    """Store new records in one transaction; the answer says which of them the sender may discard."""
    if who.attempt != body.attempt:
        raise StaleAttempt(
            f"the token belongs to attempt {who.attempt}, but the records are of attempt {body.attempt}.",
            hint="The supervisor that sent this must stop.",
        )
    acknowledged, ended = here.intake.take(job_id, body)
    # An attempt that has ended is released at once, not at the next tick.
    if ended:
        here.reconciler.wake()
    return acknowledged


@router.get("/secrets", responses=refusals(404, 409), summary="Read a job's secrets")
def hand_out(here: Here, who: BySupervisor, job_id: str, response: Response) -> JobSecrets:
    """Return the secrets that the job names, only to the supervisor of its current attempt."""
    # A proxy on the way must not keep secrets, nor give them to whoever asks next.
    response.headers["Cache-Control"] = "no-store"
    return JobSecrets(values=here.intake.hand_out(job_id, who.attempt))
