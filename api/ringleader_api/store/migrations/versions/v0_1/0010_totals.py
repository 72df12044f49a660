"""The cost of a job over all its attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

WHOLE = {"reached": sa.BigInteger, "steps_lost": sa.BigInteger, "recoveries": sa.Integer}
WHOLE |= {"generations_before": sa.Integer}


def upgrade() -> None:
    for name, kind in WHOLE.items():
        op.add_column("jobs", sa.Column(name, kind(), nullable=False, server_default="0"))
    for name in ("spent_before", "spending"):
        op.add_column("jobs", sa.Column(name, sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    for name in (*WHOLE, "spent_before", "spending"):
        op.drop_column("jobs", name)
