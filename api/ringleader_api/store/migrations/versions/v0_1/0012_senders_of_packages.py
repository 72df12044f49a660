"""The sender of a package, whose use is bounded. For packages from before it is unknown."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("packages", sa.Column("sender", sa.String(100), nullable=True))
    op.create_index("ix_packages_sender", "packages", ["sender"])


def downgrade() -> None:
    op.drop_index("ix_packages_sender", "packages")
    op.drop_column("packages", "sender")
