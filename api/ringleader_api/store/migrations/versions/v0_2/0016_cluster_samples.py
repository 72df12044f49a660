"""Samples of the cluster, one a minute."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cluster_samples",
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("cpus", sa.Float(), nullable=False),
        sa.Column("gpus", sa.Float(), nullable=False),
        sa.Column("held_cpus", sa.Float(), nullable=False),
        sa.Column("held_gpus", sa.Float(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("at", name="pk_cluster_samples"),
    )


def downgrade() -> None:
    op.drop_table("cluster_samples")
