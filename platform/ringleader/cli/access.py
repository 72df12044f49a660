"""Commands on access: whoami, token, user, project, secret, audit."""

import sys
from collections.abc import Sequence
from itertools import islice

import click

from ringleader.cli.output import CommandSession, ago, pairs, table, with_output
from ringleader.cli.terminal.numbers import FiniteRange, limit_of, sent_limit, span_s
from ringleader.wire.access import EVERY, ProjectView, Role, TokenView, UserView

ROLE = click.Choice([role.value for role in Role])
PROJECT = click.option(
    "--project", default=EVERY, show_default=True, help="The project; * means all projects."
)


def _roles(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Parse `PROJECT=ROLE`, or a role alone for all projects."""
    # rpartition: of a role alone it is the project, the first part, that stays empty.
    pairs = [text.rpartition("=") for text in given]
    roles = {project or EVERY: role for project, _, role in pairs}
    for role in roles.values():
        # For its error alone: click names the choices, as for any other argument.
        ROLE.convert(role, _option, _context)
    return roles


@click.command()
@with_output
def whoami(session: CommandSession) -> None:
    """Show the current user and their roles."""
    me = session.client().access.me()
    session.show(me.model_dump(mode="json"), lambda: pairs({"user": me.name, "roles": _text(me.roles)}))


@click.group()
def token() -> None:
    """Manage API tokens: create, list, revoke."""


@token.command("create")
@click.argument("name")
@click.option("--user", help="The user that the token is for; you by default.")
@click.option(
    "--scope",
    multiple=True,
    callback=_roles,
    metavar="[PROJECT=]ROLE",
    help="Limit the token to this role; repeat for several projects. By default it has the user's roles.",
)
@click.option(
    "--expires",
    callback=span_s,
    metavar="90d",
    help="Lifetime in s, m, h or d; unlimited by default. Required if you logged in through an identity provider.",
)
@with_output
def create_token(
    session: CommandSession, name: str, user: str | None, scope: dict[str, str], expires: float | None
) -> None:
    """Create a token called NAME.

    The token is printed once and cannot be shown again.
    """
    # Without --scope it is None and not empty: then the token has all roles of its user.
    made = session.client().access.make_token(name, user=user, scope=scope or None, expires_in_s=expires)
    session.show(made.model_dump(mode="json"), made.token)
    if not session.as_json:
        session.note(f"{made.id}, for {made.user}. Save it now: it cannot be shown again.")


@token.command("list")
@click.option("--user", help="Only tokens of this user.")
@with_output
def list_tokens(session: CommandSession, user: str | None) -> None:
    """List your tokens; admins see the tokens of all users."""
    found = session.client().access.tokens(user)
    header = ("ID", "USER", "NAME", "PREFIX", "SCOPE", "LAST USED", "STATE")
    session.show(
        [t.model_dump(mode="json") for t in found],
        lambda: table(header, (_token_row(t) for t in found), empty="no tokens"),
    )


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@with_output
def revoke_token(session: CommandSession, token_id: str) -> None:
    """Revoke the token ID. Requests with it are refused from now on."""
    session.client().access.revoke_token(token_id)
    session.show({"id": token_id}, f"{token_id}: revoked")


@click.group()
def user() -> None:
    """Manage users and their roles."""


@user.command("create")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    callback=_roles,
    metavar="[PROJECT=]ROLE",
    help="A role of the user; repeat for several projects.",
)
@with_output
def create_user(session: CommandSession, name: str, roles: dict[str, str]) -> None:
    """Create the user NAME.

    `ringleader token create TOKEN --user NAME` then creates a token for them.
    """
    _show_user(session, session.client().access.add_user(name, roles))


@user.command("list")
@with_output
def list_users(session: CommandSession) -> None:
    """List users and their roles."""
    found = session.client().access.users()
    rows = [(u.name, _text(u.roles), ago(u.created_at), "disabled" if u.disabled_at else "") for u in found]
    session.show(
        [u.model_dump(mode="json") for u in found], lambda: table(("NAME", "ROLES", "AGE", "STATE"), rows)
    )


@user.command("grant")
@click.argument("name")
@click.argument("role", type=ROLE)
@PROJECT
@with_output
def grant(session: CommandSession, name: str, role: str, project: str) -> None:
    """Grant the user NAME a ROLE, replacing the previous one."""
    _show_user(session, session.client().access.grant(name, project, role))


@user.command("withdraw")
@click.argument("name")
@PROJECT
@with_output
def withdraw(session: CommandSession, name: str, project: str) -> None:
    """Withdraw the role of the user NAME."""
    session.client().access.withdraw(name, project)
    session.show({"name": name, "project": project}, f"{name}: no role in {project}")


@user.command("disable")
@click.argument("name")
@with_output
def disable(session: CommandSession, name: str) -> None:
    """Disable the user NAME: refuse their tokens and logins."""
    session.client().access.disable_user(name)
    session.show({"name": name}, f"{name}: disabled")


@user.command("enable")
@click.argument("name")
@with_output
def enable(session: CommandSession, name: str) -> None:
    """Enable the user NAME again after `disable`."""
    _show_user(session, session.client().access.enable_user(name))


@click.group()
def project() -> None:
    """Manage projects: create, list, set weights and quotas."""


@project.command("create")
@click.argument("name")
@with_output
def create_project(session: CommandSession, name: str) -> None:
    """Create the project NAME."""
    made = session.client().access.add_project(name)
    session.show(made.model_dump(mode="json"), f"{name}: created")


@project.command("list")
@with_output
def list_projects(session: CommandSession) -> None:
    """List your projects with their quotas, usage and waiting jobs."""
    found = session.client().access.projects()
    header = ("NAME", "ROLE", "WEIGHT", "WORKERS", "CPUS", "GPUS", "RUNNING", "WAITING", "AGE")
    session.show([p.model_dump(mode="json") for p in found], lambda: table(header, map(_project_row, found)))


@project.command("share")
@click.argument("name")
@click.option(
    "--weight",
    type=FiniteRange(min=0.001, max=1000),
    help="Share of the cluster relative to other projects; 1 for a new project.",
)
@click.option(
    "--workers", callback=limit_of, metavar="N|none", help="Most workers and parameter servers at a time."
)
@click.option("--cpus", callback=limit_of, metavar="N|none", help="Most CPUs at a time.")
@click.option("--gpus", callback=limit_of, metavar="N|none", help="Most GPUs at a time.")
@with_output
def share_project(
    session: CommandSession,
    *,
    name: str,
    weight: float | None,
    workers: float | None,
    cpus: float | None,
    gpus: float | None,
) -> None:
    """Set the weight and quota of the project NAME.

    Options that are left out keep their values. A lower quota takes surplus workers back, but ends no job.
    """
    limits = {"workers": workers, "cpus": cpus, "gpus": gpus}
    quota = {kind: sent_limit(most) for kind, most in limits.items() if most is not None}
    if weight is None and not quota:
        raise click.UsageError("expected at least one of --weight, --workers, --cpus and --gpus.")
    made = session.client().access.share_out(name, weight=weight, quota=quota or None)
    session.show(made.model_dump(mode="json"), f"{name}: {' '.join(_shares(made))}")


@click.group()
def secret() -> None:
    """Manage the secrets that jobs use: set, list, delete."""


@secret.command("set")
@click.argument("name")
@click.option("--project", default="default", show_default=True, help="The project of the secret.")
@with_output
def set_secret(session: CommandSession, name: str, project: str) -> None:
    """Set the secret NAME.

    The value is read from standard input, or prompted for on a terminal.
    """
    # No option: a command's arguments are seen by everybody on the machine.
    value = (
        click.prompt("Value", hide_input=True) if sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    )
    made = session.client().access.set_secret(project, name, value)
    session.show(made.model_dump(mode="json"), f"{project}/{name}: set")


@secret.command("list")
@click.option("--project", help="Only secrets of this project.")
@with_output
def list_secrets(session: CommandSession, project: str | None) -> None:
    """List the names of secrets; values are never shown."""
    found = session.client().access.secrets(project)
    rows = [(s.project, s.name, s.set_by, ago(s.set_at)) for s in found]
    header = ("PROJECT", "NAME", "SET BY", "AGE")
    session.show([s.model_dump(mode="json") for s in found], lambda: table(header, rows, empty="no secrets"))


@secret.command("delete")
@click.argument("name")
@click.option("--project", default="default", show_default=True, help="The project of the secret.")
@with_output
def delete_secret(session: CommandSession, name: str, project: str) -> None:
    """Delete the secret NAME.

    Later attempts of jobs that use it fail.
    """
    session.client().access.drop_secret(project, name)
    session.show({"project": project, "name": name}, f"{project}/{name}: deleted")


@click.command()
@click.option("--by", help="Only actions of this user.")
@click.option("--project", help="Only actions on this project.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of entries."
)
@with_output
def audit(session: CommandSession, by: str | None, project: str | None, limit: int) -> None:
    """Show the audit log: who changed what, and what was refused.

    The newest entry comes first.
    """
    # 1000 is the most that the API gives in one page.
    log = session.client().access.audit(by=by, project=project, page=min(limit, 1000))
    found = list(islice(log, limit))
    header = ("TIME", "USER", "REQUEST", "PROJECT", "TARGET", "OUTCOME")
    rows = [
        (e.at.isoformat(timespec="seconds"), e.who, f"{e.method} {e.path}", e.project, e.target, e.outcome)
        for e in found
    ]
    session.show([e.model_dump(mode="json") for e in found], lambda: table(header, rows, empty="no entries"))


def _project_row(project: ProjectView) -> tuple[str, ...]:
    held, quota = project.held, project.quota
    uses = ((held.workers, quota.workers), (held.cpus, quota.cpus), (held.gpus, quota.gpus))
    return (
        project.name,
        project.role.value,
        f"{project.weight:g}",
        *(f"{has:g}" if most is None else f"{has:g}/{most:g}" for has, most in uses),
        str(held.jobs),
        str(held.waiting),
        ago(project.created_at),
    )


def _shares(project: ProjectView) -> list[str]:
    """`weight=2 workers=8 cpus=none gpus=none`."""
    limits = project.quota.model_dump().items()
    return [
        f"weight={project.weight:g}",
        *(f"{kind}={'none' if limit is None else format(limit, 'g')}" for kind, limit in limits),
    ]


def _show_user(session: CommandSession, user: UserView) -> None:
    session.show(user.model_dump(mode="json"), f"{user.name}: {_text(user.roles) or 'no roles'}")


def _token_row(token: TokenView) -> tuple[str, ...]:
    state = (
        "revoked" if token.revoked_at else f"until {token.expires_at:%Y-%m-%d}" if token.expires_at else ""
    )
    # The widest scope takes nothing from the roles of the user.
    scope = "" if token.scope == {EVERY: Role.ADMIN} else _text(token.scope)
    return (token.id, token.user, token.name, token.prefix, scope, ago(token.last_used_at), state)


def _text(roles: dict[str, Role]) -> str:
    """`vision=viewer, *=operator`."""
    return ", ".join(f"{project}={role.value}" for project, role in roles.items())
