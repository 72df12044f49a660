"""Sweeps and their trials."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("owner", sa.String(100), nullable=False),
        sa.Column("scope", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.JSON(), nullable=True),
        sa.Column("best", sa.Integer(), nullable=True),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.Column("key", sa.String(200), nullable=True),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweeps")),
        sa.UniqueConstraint("owner", "key", name=op.f("uq_sweeps_owner_key")),
    )
    op.create_index("ix_sweeps_project_id", "sweeps", ["project", "id"], unique=False)
    op.create_index("ix_sweeps_closed_id", "sweeps", ["closed", "id"], unique=False)
    op.create_table(
        "sweep_trials",
        sa.Column("sweep_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("point", sa.JSON(), nullable=True),
        sa.Column("job_id", sa.String(40), nullable=True),
        sa.Column("rung", sa.Integer(), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("scored_at", sa.JSON(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["sweep_id"], ["sweeps.id"], name=op.f("fk_sweep_trials_sweep_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sweep_id", "number", name=op.f("pk_sweep_trials")),
    )
    op.create_index("ix_sweep_trials_job_id", "sweep_trials", ["job_id"], unique=False)


def downgrade() -> None:
    op.drop_table("sweep_trials")
    op.drop_table("sweeps")
