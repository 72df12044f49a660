"""What adapters ask of a job before its first step."""

from typing import Any

import pytest

from ringleader.adapters.session_loop import check_batch_size
from ringleader.errors import StepMisuse
from ringleader.train.local import local_session


def check(**more: Any) -> None:
    batch = {"global_size": 16, "logical_shards": 2} | more.pop("batch", {})
    with local_session({"name": "a", "entrypoint": "m:f", "batch": batch} | more) as session:
        check_batch_size(session, 4, 2)


def test_the_batch_of_a_program_is_the_job_s() -> None:
    check()
    with pytest.raises(StepMisuse, match=r"a step of the program has 16 rows .* batch.global_size is 32"):
        check(batch={"global_size": 32})


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("batch.schedule", {"batch": {"schedule": [[5, 32]]}}),
        ("data.skip", {"data": {"skip": [[2, 3]]}}),
    ],
)
def test_a_job_whose_batches_change_is_refused(key: str, more: dict[str, Any]) -> None:
    with pytest.raises(StepMisuse, match=f"{key} in the job file cannot be kept"):
        check(**more)
