"""Lists of jobs sorted by parameters and labels, by steps, workers and attempts."""

import re
import struct

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

COLUMNS = ("step", "world_size", "attempt")
RANKED = "ix_job_attributes_kind_key_rank_job_id"
ROWS = sa.table("job_attributes", *(sa.column(name) for name in ("kind", "key", "value", "rank")))
AT_ONCE = 5000
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def upgrade() -> None:
    for column in COLUMNS:
        op.create_index(f"ix_jobs_{column}_id", "jobs", [column, "id"], unique=False)
    op.add_column("job_attributes", sa.Column("rank", sa.String(201), nullable=False, server_default=""))
    _rank_what_is_there()
    op.create_index(RANKED, "job_attributes", ["kind", "key", "rank", "job_id"], unique=False)


def downgrade() -> None:
    op.drop_index(RANKED, table_name="job_attributes")
    op.drop_column("job_attributes", "rank")
    for column in COLUMNS:
        op.drop_index(f"ix_jobs_{column}_id", table_name="jobs")


def _rank_what_is_there() -> None:
    """Fill `rank`, value by value, in the order of the primary key."""
    connection = op.get_bind()
    of = (ROWS.c.kind, ROWS.c.key, ROWS.c.value)
    marks: list[sa.BindParameter[str]] = [sa.bindparam(name) for name in ("of_kind", "of_key", "of_value")]
    change = sa.update(ROWS).where(*(one == mark for one, mark in zip(of, marks, strict=True)))
    change = change.values(rank=sa.bindparam("of_rank"))
    values = sa.select(*of).distinct().order_by(*of).limit(AT_ONCE)
    last = ("", "", "")
    while found := connection.execute(values.where(sa.tuple_(*of) > sa.tuple_(*map(sa.literal, last)))).all():
        connection.execute(
            change,
            [
                {"of_kind": kind, "of_key": key, "of_value": value, "of_rank": _rank(value)}
                for kind, key, value in found
            ],
        )
        last = tuple(found[-1])


def _rank(value: str) -> str:
    """As `store.listed.rank_of` had it then."""
    if not NUMBER.fullmatch(value):
        return f"t{value}"
    (bits,) = struct.unpack(">Q", struct.pack(">d", float(value) + 0.0))
    return f"n{bits ^ (((1 << 64) - 1) if bits >> 63 else 1 << 63):016x}"
