"""The first and the last time among the points of a stretch, by which a stretch of time of a long curve is read.

Stretches from before have none: their points are read.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("metric_stretches", sa.Column("first_at", sa.DateTime(), nullable=True))
    op.add_column("metric_stretches", sa.Column("last_at", sa.DateTime(), nullable=True))


def downgrade() -> None:
    op.drop_column("metric_stretches", "last_at")
    op.drop_column("metric_stretches", "first_at")
