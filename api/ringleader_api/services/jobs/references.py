"""References of a job file to what is stored: its package, its secrets, and the weights that it begins with."""

from urllib.parse import unquote

from ringleader.spec import JobSpec
from ringleader.spec.job import JOB_ID, PACKAGE
from ringleader_api.problems import NotFound, Unprocessable, wrong_key
from ringleader_api.rights import Action, Caller, may
from ringleader_api.services import packages
from ringleader_api.services.jobs.checkpoints import checkpoints_of, has_final, leaves_weights
from ringleader_api.services.secrets import Secrets
from ringleader_api.services.users.access import load, permit_job
from ringleader_api.store import Store
from ringleader_api.store.tables import Job

SEE_JOBS = "`ringleader jobs` lists the jobs that you can read."


class References:
    """Checks that what job files refer to is there, and that who submits may use it."""

    def __init__(self, store: Store, secrets: Secrets) -> None:
        self._store = store
        self._secrets = secrets

    def check(self, who: Caller, spec: JobSpec) -> None:
        """Raises Unprocessable: naming the key whose package, secret or weights are not there for `who`."""
        if spec.working_dir is not None:
            self._check_package(spec.working_dir)
        elif isinstance(spec.requirements, str):
            allowed = "a file in working_dir, or a list of name==version"
            raise wrong_key(
                "/requirements",
                spec.requirements,
                allowed,
                "is a file, but the job has no working_dir that could hold it",
                hint="Set working_dir to the folder that holds the file, or list the packages themselves.",
            )
        self._check_secrets(spec)
        if spec.init_from is not None:
            self._check_beginning(who, spec.init_from, optimizers=spec.init_optimizers)

    def _check_package(self, name: str) -> None:
        if not PACKAGE.fullmatch(name):
            raise wrong_key(
                "/working_dir",
                name,
                "sha256:… of an uploaded package",
                "is not an uploaded package",
                hint="`ringleader submit` uploads the folder; over REST, PUT it to /api/v1/packages/… first.",
            )
        with self._store.read() as session:
            if not packages.there(session, name):
                raise not_uploaded(name)

    def _check_secrets(self, spec: JobSpec) -> None:
        if not spec.secrets:
            return
        with self._store.read() as session:
            absent = self._secrets.missing(session, spec.project, spec.secrets)
        for variable in absent:
            raise wrong_key(
                f"/secrets/{variable}",
                spec.secrets[variable],
                "the name of a secret of this project",
                f"is not a secret of project {spec.project}",
                hint=f"Set it with `ringleader secret set {spec.secrets[variable]} --project {spec.project}`; "
                "`ringleader secret list` shows the existing ones.",
            )

    def _check_beginning(self, who: Caller, given: str, *, optimizers: bool) -> None:
        """Check that `who` may read the weights to begin with. A checkpoint in the folder of a job is that job's,
        wherever it lies."""
        if JOB_ID.fullmatch(given):
            self._check_weights(who, given, optimizers=optimizers)
            return
        # Also in the decoded URI: an escaped id names the same folder.
        for job_id in dict.fromkeys(JOB_ID.findall(given) + JOB_ID.findall(unquote(given))):
            with self._store.read() as session:
                known = session.get(Job, job_id)
            if known is not None and (known.deleted_at or not may(who, Action.READ, known.project)):
                raise wrong_key(
                    "/init_from",
                    given,
                    "the ID of a job that you can read (job_…), or the URI of another checkpoint",
                    f"belongs to {job_id}, and there is no such job that you can read",
                    hint=SEE_JOBS,
                )

    def _check_weights(self, who: Caller, job_id: str, *, optimizers: bool) -> None:
        """Check that the job has weights to begin with, and its optimizers' states where they are asked for. Which ones
        they will be is known once the new job starts."""
        try:
            permit_job(self._store, who, Action.READ, job_id)
            with self._store.read() as session:
                source = load(session, job_id)
                saved, ended = checkpoints_of(session, job_id), leaves_weights(source)
        except NotFound:
            raise wrong_key(
                "/init_from",
                job_id,
                "the ID of a job that you can read, or the URI of a checkpoint",
                "is not the ID of a job that you can read",
                hint=SEE_JOBS,
            ) from None
        if optimizers and ended and not has_final(saved):
            raise wrong_key(
                "/init_optimizers",
                True,
                "false, or with init_from a job that has saved a checkpoint of its end",
                f"is asked for, and {job_id} has succeeded without a checkpoint of its end",
                hint="Leave it out: the job begins with the final weights, and its optimizers anew.",
            )
        if not (ended or saved):
            raise wrong_key(
                "/init_from",
                job_id,
                "a job that has succeeded or has saved a checkpoint",
                "has neither succeeded nor saved a checkpoint",
                hint="Submit again once it has, or start from another job.",
            )


def not_uploaded(name: str) -> Unprocessable:
    """The refusal of a job whose package is gone, or never came."""
    return wrong_key(
        "/working_dir",
        name,
        "an uploaded package",
        "has not been uploaded",
        hint=f"Submit again with `ringleader submit`, or PUT it to /api/v1/packages/{name} first.",
    )
