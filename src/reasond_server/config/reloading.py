"""Looks whether the configuration file has changed, for the few keys that may change while the server runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from reasond_server.config.sources import load
from reasond_server.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from reasond_server.config.models import Settings

_log = logging.getLogger("reasond.config")


class FileWatch:
    """Reads `file` again when it was written, replaced or linked anew; one that is wrong changes nothing.

    `apply` is handed the new settings; it takes over what it can.
    """

    def __init__(self, *, file: Path, environ: Mapping[str, str], apply: Callable[[Settings], None]) -> None:
        self._file = file
        self._environ = environ
        self._apply = apply
        self._stamp = self._look()

    async def run(self, *, every_s: float = 2.0) -> None:
        """Look every `every_s` seconds until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.check()

    def check(self) -> bool:
        """Take over the file if it has changed; return whether that was so."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            loaded = load(self._file, self._environ)
        except SettingsError as error:
            _log.error("the changed configuration file cannot be used, what was read before stays: %s", error.message)
            return False
        self._apply(loaded.settings)
        _log.info("configuration file read again: revoked tokens and inactive subjects hold; other keys need a restart")
        return True

    def _look(self) -> tuple[int, ...]:
        """Return what changes with every writing of the file."""
        try:
            found = self._file.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)
