"""Databases: where they are, their tables and migrations, and how to reach SQLite and PostgreSQL; knows no event."""
