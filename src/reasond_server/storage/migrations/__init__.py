"""The migrations of the schema, run by Alembic; expand first, contract one release later."""
