"""Lists by state, project or name that need no sorting."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BEFORE = ("state", "project")
FILTERED = (*BEFORE, "name")


def upgrade() -> None:
    for column in FILTERED:
        op.create_index(f"ix_jobs_{column}_id", "jobs", [column, "id"], unique=False)
    for column in BEFORE:
        op.drop_index(f"ix_jobs_{column}", table_name="jobs")


def downgrade() -> None:
    for column in BEFORE:
        op.create_index(f"ix_jobs_{column}", "jobs", [column], unique=False)
    for column in FILTERED:
        op.drop_index(f"ix_jobs_{column}_id", table_name="jobs")
