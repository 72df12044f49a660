"""Users, roles, tokens, projects, secrets and the audit log. Existing rows go to the first user, `admin`."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

FIRST = "admin"


def upgrade() -> None:
    _make_people()
    _make_audit()
    _own_what_was_there()
    _keys_per_owner()
    _sessions_of_users()


def _make_people() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("subject", sa.String(length=600), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("disabled_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
        sa.UniqueConstraint("subject", name=op.f("uq_users_subject")),
    )
    op.create_table(
        "roles",
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_roles_user")),
        sa.PrimaryKeyConstraint("user", "project", name=op.f("pk_roles")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=True),
        sa.Column("last_used_at", sa.DateTime(), nullable=True),
        sa.Column("revoked_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_tokens_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    op.create_index("ix_tokens_user", "tokens", ["user"], unique=False)
    op.create_table(
        "projects",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "secrets",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("set_by", sa.String(length=100), nullable=False),
        sa.Column("set_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_secrets_project")),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "pending_logins",
        sa.Column("state_sha256", sa.String(length=64), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("verifier", sa.String(length=128), nullable=False),
        sa.Column("target", sa.String(length=2000), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("state_sha256", name=op.f("pk_pending_logins")),
    )


def _make_audit() -> None:
    op.create_table(
        "audit",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("who", sa.String(length=100), nullable=False),
        sa.Column("token", sa.String(length=40), nullable=True),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("target", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_who_id", "audit", ["who", "id"], unique=False)
    op.create_index("ix_audit_project_id", "audit", ["project", "id"], unique=False)


def _own_what_was_there() -> None:
    connection = op.get_bind()
    now = datetime.now(UTC).replace(tzinfo=None)
    users = sa.table("users", sa.column("name"), sa.column("created_at", sa.DateTime()))
    roles = sa.table("roles", sa.column("user"), sa.column("project"), sa.column("role"))
    projects = sa.table("projects", sa.column("name"), sa.column("created_at", sa.DateTime()))
    connection.execute(users.insert().values(name=FIRST, created_at=now))
    connection.execute(roles.insert().values(user=FIRST, project="*", role="admin"))
    known = {name for (name,) in connection.execute(sa.text("SELECT DISTINCT project FROM jobs"))}
    for name in sorted(known | {"default"}):
        connection.execute(projects.insert().values(name=name, created_at=now))
    connection.execute(sa.text("UPDATE jobs SET owner = 'admin' WHERE owner = 'operator'"))


def _keys_per_owner() -> None:
    """Make idempotency keys their sender's own: two users may choose the same."""
    op.create_table(
        "idempotency_keys_of_owners",
        sa.Column("owner", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_idempotency_keys_of_owners_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("owner", "key", name=op.f("pk_idempotency_keys_of_owners")),
    )
    op.execute(
        "INSERT INTO idempotency_keys_of_owners (owner, key, body_sha256, job_id, created_at) "
        "SELECT jobs.owner, k.key, k.body_sha256, k.job_id, k.created_at "
        "FROM idempotency_keys k JOIN jobs ON jobs.id = k.job_id"
    )
    op.drop_table("idempotency_keys")


def _sessions_of_users() -> None:
    """Keep pages logged in, as the first user; sessions last for a week only."""
    op.add_column("login_sessions", sa.Column("user", sa.String(length=100), nullable=True))
    op.add_column("login_sessions", sa.Column("token", sa.String(length=40), nullable=True))
    op.execute("UPDATE login_sessions SET \"user\" = 'admin'")


def downgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_idempotency_keys_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )
    op.execute(
        "INSERT INTO idempotency_keys (key, body_sha256, job_id, created_at) "
        "SELECT key, MIN(body_sha256), MIN(job_id), MIN(created_at) FROM idempotency_keys_of_owners "
        "GROUP BY key HAVING COUNT(*) = 1"
    )
    op.drop_table("idempotency_keys_of_owners")
    op.drop_column("login_sessions", "token")
    op.drop_column("login_sessions", "user")
    op.execute("UPDATE jobs SET owner = 'operator' WHERE owner = 'admin'")
    for table in ("audit", "pending_logins", "secrets", "projects", "tokens", "roles", "users"):
        op.drop_table(table)
