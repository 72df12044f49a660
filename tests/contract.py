"""The OpenAPI document against the application: requests drawn from it, answers compared with what it promises."""

from collections.abc import Sequence
from typing import Any

import schemathesis
import schemathesis.checks
from control_plane import URL, Stage
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode

schemathesis.checks.load_all_checks()
PROMISES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
REFUSAL = "negative_data_rejection"


def operations(document: dict[str, Any]) -> dict[str, APIOperation]:
    """Every operation of the document by its method and path."""
    schema = schemathesis.openapi.from_dict(document)
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


class Contract:
    """Draws requests for one operation after another.

    Args:
        ids: of jobs that are there; drawn in the place of three of four job ids.
        ingest_token: of the supervisor of the first one.
    """

    def __init__(self, here: Stage, ids: Sequence[str], ingest_token: str) -> None:
        self._here = here
        self._ids = ids
        self._ingest_token = ingest_token
        self.answers: list[int] = []

    def hold(self, operation: APIOperation, examples: int) -> None:
        """Raises schemathesis' failures, with the request as a curl command."""
        for mode in _modes(operation):

            @seed(1)
            @settings(
                max_examples=examples,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode), pick=st.integers(0, 3))
            def drawn(case: Case, pick: int) -> None:
                self._hold_one(case, pick)

            drawn()

    def _hold_one(self, case: Case, pick: int) -> None:
        if pick and "job_id" in case.path_parameters:
            case.path_parameters["job_id"] = self._ids[pick % len(self._ids)]
        told = case.as_transport_kwargs(base_url=URL)
        headers = {**told["headers"], "Authorization": self._here.client.headers["Authorization"]}
        if case.operation.path.endswith("/ingest"):
            headers["Authorization"] = f"Bearer {self._ingest_token}"
        body = (
            {"content": told["data"]} if "data" in told else {"json": told["json"]} if "json" in told else {}
        )
        answer = self._here.client.request(
            told["method"], told["url"], params=told.get("params"), headers=headers, **body
        )
        self.answers.append(answer.status_code)
        promises = PROMISES if answer.status_code >= 400 else (*PROMISES, REFUSAL)
        case.validate_response(answer, checks=[schemathesis.checks.CHECKS.get_one(name) for name in promises])


def _modes(operation: APIOperation) -> tuple[GenerationMode, ...]:
    """Text in a path or a header cannot be of a wrong type: only a query or a body can."""
    drawn = operation.definition.raw
    can_be_wrong = "requestBody" in drawn or any(p["in"] == "query" for p in drawn.get("parameters", ()))
    return (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if can_be_wrong else (GenerationMode.POSITIVE,)
