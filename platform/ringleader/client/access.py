"""Access from the client's side: users, tokens, projects, secrets, the audit log."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from ringleader.client.http import Api
from ringleader.wire.access import (
    AuditEntry,
    AuditPage,
    MeView,
    NewTokenView,
    ProjectPage,
    ProjectView,
    SecretPage,
    SecretView,
    TokenPage,
    TokenView,
    UserPage,
    UserView,
)

Page = TypeVar("Page", UserPage, TokenPage, ProjectPage, SecretPage)
MOST = 200
"""The most items of a page."""


class Access:
    """The methods of `client.access`. Roles are by project, `*` is all projects. Raises ApiProblem where refused."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def me(self) -> MeView:
        """The user that the client's token belongs to, and the roles that it has."""
        return MeView.model_validate(self._api.get("/me"))

    def users(self) -> list[UserView]:
        return [user for page in self._pages("/users", UserPage) for user in page.items]

    def add_user(self, name: str, roles: Mapping[str, str] | None = None) -> UserView:
        return UserView.model_validate(self._post("/users", {"name": name, "roles": dict(roles or {})}))

    def disable_user(self, name: str) -> None:
        """Disable the user: none of their tokens and log-ins opens anything any more."""
        self._api.request("DELETE", f"/users/{_part(name)}")

    def enable_user(self, name: str) -> UserView:
        return UserView.model_validate(self._post(f"/users/{_part(name)}/enable", None))

    def grant(self, name: str, project: str, role: str) -> UserView:
        """Give a role in the project, replacing the one before."""
        path = f"/users/{_part(name)}/roles/{_part(project)}"
        return UserView.model_validate(self._api.request("PUT", path, json={"role": role}).json())

    def withdraw(self, name: str, project: str) -> None:
        """Take the role in the project."""
        self._api.request("DELETE", f"/users/{_part(name)}/roles/{_part(project)}")

    def tokens(self, user: str | None = None) -> list[TokenView]:
        return [token for page in self._pages("/tokens", TokenPage, user=user) for token in page.items]

    def make_token(
        self,
        name: str,
        *,
        user: str | None = None,
        scope: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
    ) -> NewTokenView:
        """Make a token; only this answer ever holds it. Without `scope` it has all roles of its user."""
        body = {
            "name": name,
            "user": user,
            "scope": dict(scope) if scope else None,
            "expires_in_s": expires_in_s,
        }
        return NewTokenView.model_validate(self._post("/tokens", body))

    def revoke_token(self, token_id: str) -> None:
        self._api.request("DELETE", f"/tokens/{_part(token_id)}")

    def projects(self) -> list[ProjectView]:
        return [project for page in self._pages("/projects", ProjectPage) for project in page.items]

    def add_project(self, name: str) -> ProjectView:
        return ProjectView.model_validate(self._post("/projects", {"name": name}))

    def share_out(
        self, name: str, *, weight: float | None = None, quota: Mapping[str, float | None] | None = None
    ) -> ProjectView:
        """Set a project's share: its `weight`, and limits of its `quota` (workers, cpus, gpus; None is no limit).
        Values that are left out stay."""
        body = {k: v for k, v in {"weight": weight, "quota": quota and dict(quota)}.items() if v is not None}
        answer = self._api.request("PATCH", f"/projects/{_part(name)}", json=body)
        return ProjectView.model_validate(answer.json())

    def secrets(self, project: str | None = None) -> list[SecretView]:
        """Secrets by name; their values are never returned."""
        return [
            secret for page in self._pages("/secrets", SecretPage, project=project) for secret in page.items
        ]

    def set_secret(self, project: str, name: str, value: str) -> SecretView:
        path = f"/secrets/{_part(project)}/{_part(name)}"
        return SecretView.model_validate(self._api.request("PUT", path, json={"value": value}).json())

    def drop_secret(self, project: str, name: str) -> None:
        self._api.request("DELETE", f"/secrets/{_part(project)}/{_part(name)}")

    def audit(
        self, *, by: str | None = None, project: str | None = None, page: int = 200
    ) -> Iterator[AuditEntry]:
        """Entries of the audit log, newest first, fetched `page` at a time."""
        before = None
        while True:
            wanted = {"by": by, "project": project, "limit": page, "before": before}
            found = AuditPage.model_validate(self._api.get("/audit", wanted))
            yield from found.items
            if (before := found.next) is None:
                return

    def _pages(self, path: str, kind: type[Page], **wanted: str | None) -> Iterator[Page]:
        """All pages of a list."""
        return map(kind.model_validate, self._api.pages(path, {**wanted, "limit": MOST}))

    def _post(self, path: str, body: Any) -> Any:
        return self._api.request("POST", path, json=body).json()


def _part(text: str) -> str:
    # `*` is all projects; a slash in a name must not become a part of the path.
    return quote(text, safe="*")
