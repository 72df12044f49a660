"""Alembic migrations: added, never edited."""
