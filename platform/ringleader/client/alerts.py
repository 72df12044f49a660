"""Alerts from the client's side: the rules of projects, and what was sent."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ringleader.client.http import Api
from ringleader.wire.alerts import AlertPage, AlertRulePage, AlertRuleSet, AlertRuleView, AlertView

MOST = 200
"""The most items of a page."""


class Alerts:
    """The methods of `client.alerts`. Raises ApiProblem where refused."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def history(
        self,
        *,
        job: str | None = None,
        project: str | None = None,
        state: str | None = None,
        page: int = MOST,
    ) -> Iterator[AlertView]:
        """Alerts, newest first, fetched `page` at a time: of the job with this id, of a project, of those that are
        `pending`, `sent` or `failed`."""
        wanted = {"job": job, "project": project, "state": state, "limit": page}
        for found in map(AlertPage.model_validate, self._api.pages("/alerts", wanted)):
            yield from found.items

    def rules(self, project: str) -> list[AlertRuleView]:
        """The rules of a project, by name."""
        return AlertRulePage.model_validate(self._api.get(_rules(project))).items

    def set_rule(
        self, project: str, name: str, *, when: Mapping[str, Any], channels: Sequence[Mapping[str, Any]]
    ) -> AlertRuleSet:
        """Set or replace a rule of a project, as `alerts` of a job file has it."""
        body = {"when": dict(when), "channels": [dict(channel) for channel in channels]}
        return AlertRuleSet.model_validate(self._api.request("PUT", _rules(project, name), json=body).json())

    def drop_rule(self, project: str, name: str) -> None:
        self._api.request("DELETE", _rules(project, name))

    def test_rule(self, project: str, name: str) -> list[AlertView]:
        """Send a test to each channel of a rule."""
        answer = self._api.request("POST", f"{_rules(project, name)}/test")
        return AlertPage.model_validate(answer.json()).items


def _rules(project: str, *rule: str) -> str:
    # A slash in a name must not become a part of the path.
    return "/".join(
        ["/projects", quote(project, safe=""), "alerts", *(quote(name, safe="") for name in rule)]
    )
