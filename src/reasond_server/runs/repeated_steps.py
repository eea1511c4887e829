"""Counts the steps of a run, and compares those that it repeats with the ones that its earlier lives logged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.runs.run_journal import RunJournal

_CHANGED: Final = (
    "The server went down after {steps} steps, and the one that went on did not do the same again, because its code or "
    "configuration is another: those steps stand as they were, later ones and the result were worked out anew."
)

_OTHER_SETTINGS: Final = (
    "The server went down and its configuration or release is another: answers that were paid before were used again, "
    "though such calls have other parameters now ({settings})."
)

_log = logging.getLogger("reasond.executions")


class RepeatedSteps:
    """The steps of one run. `known` are the digests of those that its earlier lives logged, in their order.

    Attributes:
        count: steps so far, in all lives of the execution.
        new_count: steps of this life; negative while it repeats logged ones.
    """

    def __init__(self, known: Sequence[bytes] = ()) -> None:
        self.count = 0
        self.new_count = -len(known)
        self._known = known
        self._has_diverged = False

    def add(self) -> None:
        """Count one more step."""
        self.count += 1
        self.new_count += 1

    def compare(self, digest: bytes) -> None:
        """Compare the next step, which is logged already (`new_count` is negative), with the logged one."""
        if digest != self._known[self.count]:
            self._has_diverged = True

    def close(self) -> None:
        """Note that the work has an outcome; it did not repeat its steps if some are still missing."""
        if self.new_count < 0:
            self._has_diverged = True

    def list_changes(self, journal: RunJournal | None, *, execution_id: str) -> Sequence[str]:
        """Return warnings for the caller if the run did not repeat its logged steps, or its recorded calls."""
        warnings: list[str] = []
        if self._has_diverged or (journal is not None and journal.has_diverged):
            _log.warning("work did not repeat its steps", extra={"execution_id": execution_id})
            warnings.append(_CHANGED.format(steps=len(self._known)))
        if journal is not None and journal.other_settings:
            changes = (f"{name} {show(was)}, now {show(now)}" for name, (was, now) in journal.other_settings.items())
            warnings.append(_OTHER_SETTINGS.format(settings="; ".join(changes)))
        return tuple(warnings)
