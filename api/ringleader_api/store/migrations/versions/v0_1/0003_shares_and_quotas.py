"""The due of projects, and the workers that the scheduler grants a job. Existing jobs may have all they want."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JOBS = ("preempted", "granted_at", "granted")
PROJECTS = ("quota_gpus", "quota_cpus", "quota_workers", "weight")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("granted", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("granted_at", sa.DateTime(), nullable=True))
    op.add_column("jobs", sa.Column("preempted", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("projects", sa.Column("weight", sa.Float(), nullable=False, server_default="1"))
    op.add_column("projects", sa.Column("quota_workers", sa.Integer(), nullable=True))
    op.add_column("projects", sa.Column("quota_cpus", sa.Float(), nullable=True))
    op.add_column("projects", sa.Column("quota_gpus", sa.Float(), nullable=True))


def downgrade() -> None:
    for table, columns in (("projects", PROJECTS), ("jobs", JOBS)):
        for column in columns:
            op.drop_column(table, column)
