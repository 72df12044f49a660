"""The page of what a training function uses."""

from reference.markdown import page
from reference.signatures import described

LEAD = """What a training function uses: the session that it is given, the data sets that read Parquet files, and
optimizers for large batches. All of it is imported from `ringleader`, `ringleader.data` and `ringleader.optim`. What
runs again when, and what that asks of your lines: [what runs again](../what-runs-again.md)."""


def session_page() -> str:
    import ringleader
    from ringleader import data, optim

    tools = [ringleader.local_session, ringleader.weights_sha256]
    ours = [getattr(part, name) for part in (data, optim) for name in part.__all__]
    return page("Session", LEAD, *(described(one) for one in (ringleader.Session, *tools, *ours)))


def sdk_page() -> str:
    import ringleader
    from ringleader import client, errors

    handles = [ringleader.Client, ringleader.Job, client.Sweep, client.Sweeps]
    records = [
        getattr(client, name) for name in client.__all__ if name not in {one.__name__ for one in handles}
    ]
    raised = [
        errors.JobFailed,
        errors.WaitTimeout,
        errors.ApiProblem,
        errors.ApiUnreachable,
        errors.SpecInvalid,
    ]
    lead = (
        "The client of a control plane, for scripts and notebooks: `pip install ringleader` brings it, without torch "
        "and Ray. Every error has a stable [code](codes.md#codes-of-errors-in-python) and a `hint`."
    )
    return page("SDK", lead, *(described(one) for one in (*handles, *records, *raised)))
