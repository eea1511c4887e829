"""Databases: addresses, tables, migrations, and connections to SQLite and PostgreSQL; independent of events."""
