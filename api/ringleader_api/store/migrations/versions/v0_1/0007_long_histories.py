"""Indexes for the loops' queries, which look for the few among many ended jobs and would read all of them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

DELETED, OPEN = "ix_jobs_deleted_at_id", "ix_export_cursors_open"


def upgrade() -> None:
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"], unique=False)
    op.create_index("ix_jobs_state_id_deleted_at", "jobs", ["state", "id", "deleted_at"], unique=False)
    op.drop_index("ix_jobs_state_id", table_name="jobs")
    _partial(DELETED, "jobs", ["deleted_at", "id"], "deleted_at IS NOT NULL", "deleted_at IS NOT NULL")
    _partial(OPEN, "export_cursors", ["job_id"], "finished IS 0", "finished IS false")


def downgrade() -> None:
    op.drop_index(OPEN, table_name="export_cursors")
    op.drop_index(DELETED, table_name="jobs")
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"], unique=False)
    op.drop_index("ix_jobs_state_id_deleted_at", table_name="jobs")
    op.drop_index("ix_jobs_finished_at", table_name="jobs")


def _partial(name: str, table: str, columns: list[str], sqlite: str, postgresql: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(sqlite), postgresql_where=sa.text(postgresql))
