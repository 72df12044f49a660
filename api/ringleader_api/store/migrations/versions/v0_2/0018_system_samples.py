"""What the workers of a job and their nodes use, thinned as it grows old."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "system_samples",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("node", sa.String(100), nullable=False),
        sa.Column("span_s", sa.Float(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_system_samples_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "kind", "name", "at", name=op.f("pk_system_samples")),
    )


def downgrade() -> None:
    op.drop_table("system_samples")
