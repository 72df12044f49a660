"""Up to when the system metrics of a job are copied to MLflow."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("export_cursors", sa.Column("system_at", sa.DateTime(), nullable=True))


def downgrade() -> None:
    op.drop_column("export_cursors", "system_at")
