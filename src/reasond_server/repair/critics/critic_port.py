"""Critics: what looks at the changed files of a candidate without running them.

Packages add critics by an entry point in `reasond.critics`. They are code that the operator installed and run in the
server's process; the files that they are given are untrusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, runtime_checkable

from reasond_server.base.plugins import PLUGIN_NAME, PluginGroup
from reasond_server.errors.base import InternalError
from reasond_server.types.repairs import Finding, Severity, SourceFile

BUILT_IN_CRITICS: Final = ("lint", "tampering")
"""Names that packages cannot take."""
MAX_FINDINGS: Final = 1000
"""Most findings of one critic for one candidate; further ones are dropped, the worst are kept."""

_MAX_RULE_CHARACTERS: Final = 100
_MAX_MESSAGE_CHARACTERS: Final = 1000
_WORST_FIRST: Final = tuple(Severity)


@runtime_checkable
class Critic(Protocol):
    """Looks at code without running it. An instance serves all repairs of the server, so it keeps nothing itself.

    Attributes:
        name: its name, which is that of its entry point: small letters, digits and "_".
    """

    name: str

    async def review(self, files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> Sequence[Finding]:
        """Return findings in the files of `changes`, as they are then; None stands for a deleted file.

        `files` are those of the snapshot by path. It is also called with the original contents as `changes`: what it
        finds there already does not count against a candidate. The same arguments give the same findings.
        """


def require_critic(critic: object) -> Critic:
    """Return `critic` if it is a valid critic.

    Raises:
        InternalError: it is not valid; the text is for its author.
    """
    if not isinstance(critic, Critic):
        raise InternalError(f"{type(critic).__name__} is no critic")
    if not PLUGIN_NAME.fullmatch(str(critic.name)):
        raise InternalError(f"the name of {type(critic).__name__} does not match {PLUGIN_NAME.pattern}")
    return critic


CRITICS: Final = PluginGroup(
    group="reasond.critics",
    noun="critic",
    setting="[repair] critics",
    require=require_critic,
    reserved=BUILT_IN_CRITICS,
)


def require_findings(findings: object, paths: Iterable[str]) -> Sequence[Finding]:
    """Return what a critic found in files of `paths`, at most MAX_FINDINGS, the worst first, with bounded texts.

    Raises:
        TypeError: it returned something else; the text is for its author.
    """
    if not isinstance(findings, list | tuple) or not all(isinstance(one, Finding) for one in findings):
        message = "a critic must return a sequence of findings"
        raise TypeError(message)
    known = frozenset(paths)
    worst = sorted((one for one in findings if one.path in known), key=lambda one: _WORST_FIRST.index(one.severity))
    return tuple(
        Finding(
            rule_id=str(one.rule_id)[:_MAX_RULE_CHARACTERS],
            severity=one.severity,
            path=one.path,
            line=max(int(one.line), 0),
            message=str(one.message)[:_MAX_MESSAGE_CHARACTERS],
        )
        for one in worst[:MAX_FINDINGS]
    )


def find_new(
    findings: Sequence[Finding],
    originals: Iterable[Finding],
    *,
    files: Mapping[str, SourceFile],
    changes: Mapping[str, bytes | None],
) -> Sequence[Finding]:
    """Return the findings that the original does not have, by rule, file and text of the line: lines may move."""
    before = {path: file.content for path, file in files.items() if path in changes}
    old_lines, new_lines = _split(before), _split(changes)
    known = Counter(_identify(one, old_lines) for one in originals)
    new = []
    for one in findings:
        key = _identify(one, new_lines)
        if known[key] > 0:
            known[key] -= 1
        else:
            new.append(one)
    return new


def find_left(
    findings: Sequence[Finding],
    reported: Iterable[Finding],
    *,
    files: Mapping[str, SourceFile],
    changes: Mapping[str, bytes | None],
) -> Sequence[Finding]:
    """Return the findings in changed files that a report names in the original and that are still there, as HIGH."""
    before = {path: file.content for path, file in files.items() if path in changes}
    old_lines, new_lines = _split(before), _split(changes)
    wanted = {_identify(one, old_lines) for one in reported}
    return [
        replace(one, severity=Severity.HIGH, message=f"{one.message} (reported, and still there)")
        for one in findings
        if _identify(one, new_lines) in wanted
    ]


def _split(contents: Mapping[str, bytes | None]) -> Mapping[str, Sequence[bytes]]:
    return {path: content.splitlines() for path, content in contents.items() if content is not None}


def _identify(finding: Finding, lines: Mapping[str, Sequence[bytes]]) -> tuple[str, str, bytes]:
    found = lines.get(finding.path, ())
    text = found[finding.line - 1].strip() if 0 < finding.line <= len(found) else b""
    return finding.rule_id, finding.path, text
