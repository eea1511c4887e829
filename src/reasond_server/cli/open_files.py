"""Raises the limit of open files to what the connections need, as far as the system allows."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reasond_server.config import ServerSettings

# For the database, the models, the metrics and ordinary files.
_OTHERS = 1024
_log = logging.getLogger("reasond.cli")


def provide_open_files(server: ServerSettings) -> None:
    """Raise the soft limit of open files to the maximum number of connections; log if the hard limit is lower.

    A process without a free descriptor accepts no connection on any listener, and logs nothing about it.
    """
    needed = server.max_grpc_connections + server.max_http_connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    within = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (within, hard))
    except (OSError, ValueError):
        within = soft
    if within < needed:
        _log.warning(
            "the process may open %d files, and %d connections with what it needs besides take %d: no client is let in "
            "when they are used up. Raise the limit (LimitNOFILE, ulimit -n), or lower [server] max_grpc_connections "
            "and max_http_connections",
            within,
            needed - _OTHERS,
            needed,
        )
