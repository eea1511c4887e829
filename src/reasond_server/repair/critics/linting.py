"""Static analysis of changed Python files by ruff, a program that runs in the sandbox and never imports them."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reasond_server.repair.edits.python_sources import is_python
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxFailedError, SandboxLimits
from reasond_server.types.repairs import Finding, Severity, SourceFile

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Mapping, Sequence

    from reasond_server.sandbox.sandbox import Sandbox, SourceTree

LINT: Final = "lint"
"""Name of this critic."""

_ARGUMENTS: Final = (
    "check",
    "--isolated",  # settings of the candidate could switch rules off
    "--ignore-noqa",  # as could its comments
    "--no-cache",
    "--exit-zero",
    "--quiet",
    "--target-version=py314",
    "--select=E,W,F,B,S",
    "--output-format=json",
)
_LIMITS: Final = SandboxLimits(wall_s=30.0, cpu_s=30.0)
_HIGH = re.compile(r"E9|F63|F7|F82|invalid-syntax")
_MEDIUM = re.compile(r"[FBS]\d")


class LintCritic:
    """Runs ruff over the changed Python files; `program` is its absolute path."""

    def __init__(self, *, program: Path, sandbox: Sandbox, tree: SourceTree, permits: asyncio.Semaphore) -> None:
        self.name = LINT
        self._program = program
        self._sandbox = sandbox
        self._tree = tree
        self._permits = permits

    async def review(
        self,
        files: Mapping[str, SourceFile],  # noqa: ARG002 - the tree has them
        changes: Mapping[str, bytes | None],
    ) -> Sequence[Finding]:
        """Return the findings of ruff; see `Critic`.

        Raises:
            SandboxFailedError: ruff could not be run.
        """
        paths = [path for path, content in changes.items() if content is not None and is_python(path)]
        if not paths:
            return ()
        # Only the folder of the program is added to what every job sees of the system.
        environment = ExecutionEnvironment(name=LINT, root=self._program.parent)
        name = f"report-{secrets.token_hex(16)}.json"
        async with self._permits, self._tree.open_workspace(changes) as folder:
            ended = await self._sandbox.run(
                Job(
                    argv=(str(self._program), *_ARGUMENTS, f"--output-file={name}", "--", *paths),
                    folder=folder,
                    environment=environment,
                    limits=_LIMITS,
                    collect=(name,),
                )
            )
        report = ended.collected.get(name)
        if ended.exceeded or (report is None and not ended.exit_code):
            # Files may be made so that ruff says more than is read: the candidate failed then, and not the critic.
            text = "ruff cannot judge it within its limits of time, memory and findings"
            return (Finding(rule_id=LINT, severity=Severity.HIGH, path=paths[0], line=0, message=text),)
        if ended.exit_code or report is None:
            raise SandboxFailedError(f"ruff ended with exit code {ended.exit_code} and without a report")
        return _read(report, paths)


def find_ruff() -> Path | None:
    """Return the absolute path of ruff: that of this installation, else that of PATH; None if there is none."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which("ruff", path=scripts) or shutil.which("ruff")
    return None if found is None else Path(found).resolve()


def rate_rule(rule_id: str) -> Severity:
    """Return how bad a finding of a rule of ruff is."""
    if _HIGH.match(rule_id):
        return Severity.HIGH
    return Severity.MEDIUM if _MEDIUM.match(rule_id) else Severity.LOW


def _read(report: bytes, paths: Collection[str]) -> Sequence[Finding]:
    try:
        rows = json.loads(report)
        return tuple(_read_row(row, paths) for row in rows)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise SandboxFailedError("the report of ruff cannot be read") from None


def _read_row(row: Mapping[str, Any], paths: Collection[str]) -> Finding:
    rule_id = str(row["code"] or "invalid-syntax")
    name = str(row["filename"])
    place = max((path for path in paths if name == path or name.endswith(f"/{path}")), key=len)
    return Finding(
        rule_id=rule_id,
        severity=rate_rule(rule_id),
        path=place,
        line=int(row["location"]["row"]),
        message=str(row["message"]),
    )
