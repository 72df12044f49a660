"""The newest step that any attempt has reached: steps trained beyond it give failures back."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("furthest", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(sa.text("UPDATE jobs SET furthest = step"))


def downgrade() -> None:
    op.drop_column("jobs", "furthest")
