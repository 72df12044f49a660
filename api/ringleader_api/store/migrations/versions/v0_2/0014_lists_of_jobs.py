"""What lists of jobs are sorted and filtered by. `store.listed.fill` fills it for jobs from before, and for those of
control planes of the version before."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

SORTED = ("finished_at", "owner", "priority", "duration_s")
FILTERED = ["id", "state", "project", "owner", "name", "deleted_at"]
VALUES = ("last", "min", "max")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("duration_s", sa.Float(), nullable=True))
    op.add_column("jobs", sa.Column("listed", sa.Boolean(), nullable=False, server_default=sa.false()))
    for column in SORTED:
        op.create_index(f"ix_jobs_{column}_id", "jobs", [column, "id"], unique=False)
    op.drop_index("ix_jobs_finished_at", table_name="jobs")
    op.create_index("ix_jobs_filtered", "jobs", FILTERED, unique=False)
    op.create_index(
        "ix_jobs_unlisted",
        "jobs",
        ["id"],
        unique=False,
        sqlite_where=sa.text("listed IS 0"),
        postgresql_where=sa.text("listed IS false"),
    )
    _create_metric_summaries()
    _create_job_attributes()


def downgrade() -> None:
    op.drop_table("job_attributes")
    op.drop_table("metric_summaries")
    for name in ("unlisted", "filtered", *(f"{column}_id" for column in SORTED)):
        op.drop_index(f"ix_jobs_{name}", table_name="jobs")
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"], unique=False)
    for column in ("listed", "duration_s", "priority"):
        op.drop_column("jobs", column)


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_id"], ["jobs.id"], name=op.f(f"fk_{table}_job_id"), ondelete="CASCADE"
    )


def _create_metric_summaries() -> None:
    op.create_table(
        "metric_summaries",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("last", sa.Float(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("min", sa.Float(), nullable=False),
        sa.Column("max", sa.Float(), nullable=False),
        _of_job("metric_summaries"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_metric_summaries")),
    )
    for of in VALUES:
        name = f"ix_metric_summaries_name_{of}_job_id"
        op.create_index(name, "metric_summaries", ["name", of, "job_id"], unique=False)


def _create_job_attributes() -> None:
    op.create_table(
        "job_attributes",
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("value", sa.String(200), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=False),
        _of_job("job_attributes"),
        sa.PrimaryKeyConstraint("kind", "key", "value", "job_id", name=op.f("pk_job_attributes")),
    )
    op.create_index("ix_job_attributes_job_id", "job_attributes", ["job_id"], unique=False)
