"""The SQL that SQLite and PostgreSQL have in common, with named parameters as `:name`."""

from __future__ import annotations

from typing import Final

HAS_PASSED: Final = "SELECT 1 FROM forgotten WHERE tenant = :tenant AND execution_id = :execution_id"
FIND: Final = "SELECT body, expire_time FROM executions WHERE tenant = :tenant AND execution_id = :execution_id"
KEPT: Final = """
SELECT e.plan, e.expire_time, n.key, n.body
FROM executions e
LEFT JOIN entries n ON n.tenant = e.tenant AND n.execution_id = e.execution_id AND n.sequence IS NULL
WHERE e.tenant = :tenant AND e.execution_id = :execution_id
ORDER BY n.position
"""
# An event never stands before the position of its sequence: so the key finds where to begin.
READ: Final = """
SELECT e.expire_time, n.sequence, n.body
FROM executions e
LEFT JOIN entries n ON n.tenant = e.tenant AND n.execution_id = e.execution_id
    AND n.position > :after AND n.sequence > :after
WHERE e.tenant = :tenant AND e.execution_id = :execution_id
ORDER BY n.position LIMIT :limit
"""
PAGE: Final = """
SELECT body FROM executions
WHERE tenant = :tenant AND (expire_time IS NULL OR expire_time > :now)
    AND (:strategy = '' OR strategy = :strategy) AND (:finish_reason = '' OR finish_reason = :finish_reason)
    AND (:kind = '' OR kind = :kind)
    AND (create_time < :before_time OR (create_time = :before_time AND execution_id < :before_id))
ORDER BY create_time DESC, execution_id DESC LIMIT :size
"""
CLAIMED: Final = """
SELECT c.execution_id, c.digest FROM claims c
JOIN executions e ON e.tenant = c.tenant AND e.execution_id = c.execution_id
WHERE c.tenant = :tenant AND c.request_id = :request_id AND (e.expire_time IS NULL OR e.expire_time > :now)
"""
RELEASE: Final = """
DELETE FROM claims WHERE tenant = :tenant AND execution_id = :execution_id RETURNING execution_id
"""
DELETE: Final = """
DELETE FROM executions
WHERE tenant = :tenant AND execution_id = :execution_id AND (expire_time IS NULL OR expire_time > :now)
RETURNING execution_id
"""
REQUEST_CANCEL: Final = """
UPDATE executions SET is_cancel_requested = TRUE
WHERE tenant = :tenant AND execution_id = :execution_id AND (expire_time IS NULL OR expire_time > :now)
RETURNING execution_id
"""
REQUEST_KEEP: Final = """
UPDATE executions SET is_keep_requested = TRUE
WHERE tenant = :tenant AND execution_id = :execution_id AND (expire_time IS NULL OR expire_time > :now)
RETURNING execution_id
"""
# What makes a log the caller's, but for the lease, whose time each database tells in its own way.
TAKE: Final = "state = 'running', wake_time = NULL, fence = fence + 1, lease_owner = :owner"
# As the index says it, or it is not used.
WAKE_TIME: Final = "CASE WHEN is_cancel_requested THEN 0 ELSE wake_time END"
SET_BODY: Final = "UPDATE executions SET body = :body WHERE tenant = :tenant AND execution_id = :execution_id"
EXISTS: Final = "SELECT 1 FROM executions WHERE tenant = :tenant AND execution_id = :execution_id"
PARENT: Final = """
SELECT key, body FROM entries
WHERE tenant = :tenant AND execution_id = :inherits AND sequence IS NULL ORDER BY position
"""
INHERITED: Final = """
SELECT count(*) FROM entries WHERE tenant = :tenant AND execution_id = :execution_id AND sequence IS NULL
"""
IS_CANCELLED: Final = """
SELECT 1 FROM executions WHERE tenant = :tenant AND execution_id = :inherits AND state = 'cancelled'
"""
# A request id is free where nobody holds it, its holder is past its time, or is the one that is inherited from.
CLAIM: Final = """
INSERT INTO claims (tenant, request_id, execution_id, digest)
VALUES (:tenant, :request_id, :execution_id, :digest)
ON CONFLICT (tenant, request_id) DO UPDATE SET execution_id = excluded.execution_id, digest = excluded.digest
WHERE claims.execution_id IN (excluded.execution_id, :inherits) OR EXISTS (
    SELECT 1 FROM executions e
    WHERE e.tenant = claims.tenant AND e.execution_id = claims.execution_id AND e.expire_time <= :now)
RETURNING execution_id
"""
LOG: Final = """
SELECT key, sequence, body FROM entries
WHERE tenant = :tenant AND execution_id = :execution_id ORDER BY position
"""
