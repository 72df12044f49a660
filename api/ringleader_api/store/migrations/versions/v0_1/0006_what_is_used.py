"""The last use of a package, the last post of a supervisor, and facts about the database itself."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The default is for rows of a control plane of the version before, which goes on beside this one.
    op.add_column(
        "packages", sa.Column("used_at", sa.DateTime(), nullable=False, server_default="1970-01-01 00:00:00")
    )
    op.execute("UPDATE packages SET used_at = created_at")
    op.add_column("packages", sa.Column("given_up_at", sa.DateTime(), nullable=True))
    op.create_index("ix_jobs_package", "jobs", ["package"], unique=False)
    op.add_column("jobs", sa.Column("heard_at", sa.DateTime(), nullable=True))
    op.create_table(
        "facts",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_facts")),
    )


def downgrade() -> None:
    op.drop_table("facts")
    op.drop_column("jobs", "heard_at")
    op.drop_index("ix_jobs_package", table_name="jobs")
    op.drop_column("packages", "given_up_at")
    op.drop_column("packages", "used_at")
