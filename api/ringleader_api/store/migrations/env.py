"""Alembic's access to the database: the connection that `Store.migrate` hands it."""

from alembic import context

from ringleader_api.store import alerts, people, samples, sweeps  # noqa: F401 - their tables belong to the metadata too
from ringleader_api.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
