"""Operations on executions of every kind: read, follow, observe, list, cancel, delete."""
