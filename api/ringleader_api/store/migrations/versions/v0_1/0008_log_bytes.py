"""The bytes of a job's log lines stored so far, and the offset at which each line begins among them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ADDED = (("jobs", "log_bytes"), ("logs", "start_byte"))


def upgrade() -> None:
    for table, name in ADDED:
        op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table, name in ADDED:
        op.drop_column(table, name)
