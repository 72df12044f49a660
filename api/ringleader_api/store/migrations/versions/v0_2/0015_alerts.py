"""Alerts: the rules of projects, how far each job has been looked at, and what is to be sent."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

JSON = sa.JSON(none_as_null=True)
PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    op.create_table(
        "alert_rules",
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("terms", JSON, nullable=False),
        sa.Column("set_by", sa.String(100), nullable=False),
        sa.Column("set_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_alert_rules_project")),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_alert_rules")),
    )
    _create_cursors()
    _create_alerts()


def downgrade() -> None:
    for table in ("alerts", "alert_cursors", "alert_rules"):
        op.drop_table(table)


def _create_cursors() -> None:
    op.create_table(
        "alert_cursors",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.Column("curves", sa.Boolean(), nullable=False),
        sa.Column("due_at", sa.DateTime(), nullable=True),
        sa.Column("memory", JSON, nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_alert_cursors_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_alert_cursors")),
    )
    op.create_index(
        "ix_alert_cursors_open",
        "alert_cursors",
        ["job_id"],
        unique=False,
        sqlite_where=sa.text("open IS 1"),
        postgresql_where=sa.text("open IS true"),
    )


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("job_name", sa.String(100), nullable=False),
        sa.Column("rule", sa.String(100), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.Column("channel", JSON, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("due_at", sa.DateTime(), nullable=True),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
    )
    op.create_index(
        "ix_alerts_pending",
        "alerts",
        ["due_at"],
        unique=False,
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
    op.create_index("ix_alerts_project_id", "alerts", ["project", "id"], unique=False)
    op.create_index("ix_alerts_job_id", "alerts", ["job_id", "id"], unique=False)
    op.create_index("ix_alerts_ended_at", "alerts", ["ended_at"], unique=False)
