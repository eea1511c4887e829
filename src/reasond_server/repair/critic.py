"""Critics: what looks at the changed files of a candidate without running them.

Packages add critics by an entry point in `reasond.critics`. They are code that the operator installed and run in the
server's process; the files that they are given are untrusted.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from reasond_server.errors import InternalError, SettingsError
from reasond_server.types.repairs import Finding, Severity
from reasond_server.violations import suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reasond_server.types.snapshots import SourceFile

CRITIC_GROUP: Final = "reasond.critics"
BUILT_IN_CRITICS: Final = ("lint", "tampering")
"""Names that packages cannot take."""
CRITIC_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
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
        ...


def discover_critics(
    enabled: Sequence[str], *, reserved: Iterable[str] = BUILT_IN_CRITICS, installed: Iterable[EntryPoint] | None = None
) -> Sequence[Critic]:
    """Return the `enabled` critics from the entry points of `CRITIC_GROUP`, which name classes or instances.

    Raises:
        SettingsError: a critic is not installed, cannot be loaded, or has a name that is not its entry's or is one of
            the `reserved` names.
    """
    found = tuple(entry_points(group=CRITIC_GROUP) if installed is None else installed)
    by_name = {point.name: point for point in found}
    taken = frozenset(reserved)
    return tuple(_load(name, by_name, taken) for name in dict.fromkeys(enabled))


def require_critic(critic: object) -> Critic:
    """Return `critic` if it is a valid critic.

    Raises:
        InternalError: it is not valid; the text is for its author.
    """
    if not isinstance(critic, Critic):
        raise InternalError(f"{type(critic).__name__} is no critic")
    if not CRITIC_NAME.fullmatch(str(critic.name)):
        raise InternalError(f"the name of {type(critic).__name__} does not match {CRITIC_NAME.pattern}")
    return critic


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


def _split(contents: Mapping[str, bytes | None]) -> Mapping[str, Sequence[bytes]]:
    return {path: content.splitlines() for path, content in contents.items() if content is not None}


def _identify(finding: Finding, lines: Mapping[str, Sequence[bytes]]) -> tuple[str, str, bytes]:
    found = lines.get(finding.path, ())
    text = found[finding.line - 1].strip() if 0 < finding.line <= len(found) else b""
    return finding.rule_id, finding.path, text


def _load(name: str, by_name: Mapping[str, EntryPoint], reserved: frozenset[str]) -> Critic:
    point = by_name.get(name)
    if name in reserved:
        raise SettingsError(
            f"[repair] critics names {name!r}, which is built in", remedy="Remove the name, or rename yours."
        )
    if point is None:
        raise SettingsError(
            f"[repair] critics names {name!r}, which is not installed{suggest_nearest(name, by_name)}",
            remedy=f"Installed are: {', '.join(sorted(by_name)) or 'none'}. Install its package or remove the name.",
        )
    try:
        loaded = point.load()
        critic = require_critic(loaded() if isinstance(loaded, type) else loaded)
    except InternalError as error:
        raise SettingsError(
            f"Entry point {name!r} ({point.value}) gives no critic: {error.message}", remedy="Update its package."
        ) from error
    except Exception as error:
        raise SettingsError(
            f"Critic {name!r} ({point.value}) could not be loaded: {type(error).__name__}",
            remedy="Update its package or remove the name from [repair] critics.",
        ) from error
    if critic.name != name:
        raise SettingsError(
            f"Entry point {name!r} ({point.value}) gives a critic named {critic.name!r}",
            remedy="Name the entry point as the critic names itself.",
        )
    return critic
