"""Findings of all critics in a candidate that the original does not have."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from typing import TYPE_CHECKING, Final

from reasond_server.repair.critics.critic_port import BUILT_IN_CRITICS, Critic, find_left, find_new, require_findings
from reasond_server.repair.results.outcomes import read_findings, write_findings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from reasond_server.types.repairs import Finding, SourceFile

    Perform = Callable[[str, str, Callable[[], Awaitable[str]]], Awaitable[str]]
    """Performs an effect of a kind and digest once: returns what the callable returned now or in an earlier life."""

REVIEW: Final = "review"
"""Kind of the effect of one critic that looks at one version of files."""

_LIMIT_S: Final = 60.0
_FAILED: Final = "null"
_log = logging.getLogger("reasond.repair")


async def perform_directly(kind: str, digest: str, run: Callable[[], Awaitable[str]]) -> str:  # noqa: ARG001 - see Perform
    """Run an effect without a record of it."""
    return await run()


def digest_changes(changes: Mapping[str, bytes | None]) -> Sequence[tuple[str, str]]:
    """Return the paths of changed files with digests of their contents; empty for deleted ones."""
    return [
        (path, "" if content is None else hashlib.sha256(content).hexdigest())
        for path, content in sorted(changes.items())
    ]


class Reviews:
    """The critics of one repair. What they find in the original is kept by critic and file.

    `reported` are the findings of the client's report: one that is still there counts as new, and as HIGH.
    A critic that fails is left out of the rest of the repair, with a warning.
    """

    def __init__(
        self,
        *,
        critics: Sequence[Critic],
        files: Mapping[str, SourceFile],
        perform: Perform,
        reported: Sequence[Finding] = (),
    ) -> None:
        self._reported = reported
        self._critics = list(critics)
        self._files = files
        self._perform = perform
        self._originals: dict[tuple[str, str], Sequence[Finding]] = {}
        self._one_at_a_time = asyncio.Lock()
        self.warnings: list[str] = []

    async def find_new(self, changes: Mapping[str, bytes | None]) -> Sequence[Finding]:
        """Return the findings of all critics in `changes` that the original does not have, in the critics' order."""
        new: list[Finding] = []
        for critic in tuple(self._critics):
            findings = await self._review(critic, changes)
            originals = await self._review_originals(critic, changes) if findings else ()
            if findings is not None and originals is not None:
                new.extend(find_new(findings, originals, files=self._files, changes=changes))
                new.extend(find_left(findings, self._reported, files=self._files, changes=changes))
        return tuple(new)

    async def _review_originals(self, critic: Critic, changes: Mapping[str, bytes | None]) -> Sequence[Finding] | None:
        """Return what the critic finds in the original of the changed files; each is looked at once, and alone."""
        found: list[Finding] = []
        for path in sorted(path for path in changes if path in self._files):
            async with self._one_at_a_time:
                known = self._originals.get((critic.name, path))
                if known is None:
                    known = await self._review(critic, {path: self._files[path].content})
                if known is None:
                    return None
                self._originals[critic.name, path] = known
            found.extend(known)
        return found

    async def _review(self, critic: Critic, changes: Mapping[str, bytes | None]) -> Sequence[Finding] | None:
        """Return what the critic finds; None if it failed, now or when the review was recorded."""
        digest = hashlib.sha256(json.dumps([critic.name, digest_changes(changes)]).encode()).hexdigest()

        async def run() -> str:
            try:
                # Built-in critics have limits of their own, which do not count the time that they wait for a permit.
                async with asyncio.timeout(None if critic.name in BUILT_IN_CRITICS else _LIMIT_S):
                    findings = await critic.review(self._files, changes)
                return write_findings(require_findings(findings, changes))
            except Exception:  # noqa: BLE001 - code of others may raise anything
                _log.exception("the critic %s failed", critic.name)
                return _FAILED

        body = await self._perform(REVIEW, digest, run)
        if body != _FAILED:
            return read_findings(body)
        if critic in self._critics:
            self._critics.remove(critic)
            self.warnings.append(f"The critic {critic.name} failed and was left out; the server's log has the cause.")
        return None
