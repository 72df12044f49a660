"""Alembic migrations, a folder for each version: added, never edited."""
