"""The lowest and the highest value of each 256 steps of a metric, of which long curves are drawn.

Points from before, and of control planes of the version before, have no such rows: their curves are read whole.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "metric_stretches",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("stretch", sa.BigInteger(), nullable=False),
        sa.Column("points", sa.Integer(), nullable=False),
        sa.Column("low", sa.Float(), nullable=False),
        sa.Column("low_step", sa.BigInteger(), nullable=False),
        sa.Column("high", sa.Float(), nullable=False),
        sa.Column("high_step", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_metric_stretches_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "name", "stretch", name=op.f("pk_metric_stretches")),
    )


def downgrade() -> None:
    op.drop_table("metric_stretches")
