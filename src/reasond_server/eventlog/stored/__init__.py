"""Event logs in a database: the codec of their rows, and the stores in SQLite and PostgreSQL."""
