"""The parameters of the methods of repairs: checks types and names; the core checks the rest."""

from __future__ import annotations

from base64 import b64decode
from contextlib import suppress
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import BudgetParams, Params, StreamableParams, Whole
from reasond_server.types import NO_BUDGET
from reasond_server.types.repairs import (
    Check,
    CheckRole,
    CriticReport,
    FileEntry,
    Finding,
    RepairGoal,
    RepairTask,
    ResultFormat,
    Severity,
    SourceFile,
    SuiteOutcome,
)

# Bounds on work before the core checks its own, smaller bounds.
_MOST_FILES: Final = 10_000
_MOST_ITEMS: Final = 1_000


def _decode(value: object) -> bytes:
    """Return the bytes of base64 text."""
    with suppress(ValueError):
        if isinstance(value, str):
            return b64decode(value, validate=True)
    raise ValueError("must be base64 (RFC 4648, section 4)")


Base64 = Annotated[bytes, BeforeValidator(_decode)]


class SourceFileParams(Params):
    """A file with its content, either as text in UTF-8 or as base64; without either it is empty."""

    path: str = ""
    content: str | None = None
    content_base64: Base64 | None = None
    is_executable: bool = False

    @field_validator("content_base64", mode="after")
    @classmethod
    def _require_one_content(cls, value: bytes | None, info: ValidationInfo) -> bytes | None:
        if value is not None and info.data.get("content") is not None:
            raise ValueError("cannot be combined with content; leave one out")
        return value

    def build_source_file(self) -> SourceFile:
        """Return the file."""
        content = self.content_base64 if self.content is None else self.content.encode()
        return SourceFile(path=self.path, content=content or b"", is_executable=self.is_executable)


class FileEntryParams(Params):
    """A file of a manifest without its content."""

    path: str = ""
    digest: str = ""
    size_bytes: Whole = 0
    is_executable: bool = False


class CheckParams(Params):
    """A command whose result says whether code works; the core checks its parts."""

    name: str = ""
    role: Annotated[CheckRole, Field(strict=False)] = CheckRole.REPRODUCE
    argv: list[str] = Field(default_factory=list, max_length=_MOST_ITEMS)
    command: str = ""
    format: Annotated[ResultFormat | None, Field(strict=False)] = None
    timeout_ms: Annotated[Whole, Field(ge=1)] | None = None

    def build_check(self) -> Check:
        """Return the check."""
        return Check(
            name=self.name,
            role=self.role,
            argv=tuple(self.argv),
            command=self.command,
            format=self.format,
            timeout_s=(self.timeout_ms or 0) / 1000,
        )


class FindingParams(Params):
    """A finding of static analysis."""

    rule_id: str = ""
    severity: Annotated[Severity, Field(strict=False)] = Severity.LOW
    path: str = ""
    line: Whole = 0
    message: str = ""


class SuiteOutcomeParams(Params):
    """The outcome of a suite of tests that the client ran itself."""

    suite_name: str = ""
    is_passed: bool
    coverage: float = 0.0


class CriticReportParams(Params):
    """What the client already knows of the fault."""

    issues: list[FindingParams] = Field(default_factory=list, max_length=_MOST_ITEMS)
    test_outcomes: list[SuiteOutcomeParams] = Field(default_factory=list, max_length=_MOST_ITEMS)

    def build_report(self) -> CriticReport:
        """Return the report."""
        return CriticReport(
            issues=tuple(
                Finding(
                    rule_id=each.rule_id,
                    severity=each.severity,
                    path=each.path,
                    line=each.line,
                    message=each.message,
                )
                for each in self.issues
            ),
            test_outcomes=tuple(
                SuiteOutcome(suite_name=each.suite_name, is_passed=each.is_passed, coverage=each.coverage)
                for each in self.test_outcomes
            ),
        )


class RepairParams(StreamableParams):
    """Parameters of `repair.execute`, as RepairTask; `include_deltas` and `keep_running` are for streams only."""

    goal: Annotated[RepairGoal | None, Field(strict=False)] = None
    description: str = ""
    files: list[SourceFileParams] = Field(default_factory=list, max_length=_MOST_FILES)
    snapshot_id: str = ""
    environment: str = ""
    checks: list[CheckParams] = Field(default_factory=list, max_length=_MOST_ITEMS)
    report: CriticReportParams | None = None
    editable: list[str] = Field(default_factory=list, max_length=_MOST_ITEMS)
    config: dict[str, Any] | None = None
    budget: BudgetParams | None = None
    request_id: str | None = None
    include_deltas: bool = False
    keep_running: bool = False

    def build_task(self) -> RepairTask:
        """Return the task.

        Raises:
            InvalidRequestError: there is no goal.
        """
        if self.goal is None:
            raise InvalidRequestError.at("goal", "is required")
        return RepairTask(
            description=self.description,
            goal=self.goal,
            files=tuple(each.build_source_file() for each in self.files),
            snapshot_id=self.snapshot_id,
            environment=self.environment,
            checks=tuple(each.build_check() for each in self.checks),
            report=self.report.build_report() if self.report else CriticReport(),
            editable=tuple(self.editable),
            config=self.config or {},
            budget=self.budget.build_budget() if self.budget else NO_BUDGET,
        )


class CreateSnapshotParams(Params):
    """Parameters of `repair.create_snapshot`, as CreateSnapshotRequest."""

    manifest: list[FileEntryParams] = Field(default_factory=list, max_length=_MOST_FILES)

    def build_entries(self) -> tuple[FileEntry, ...]:
        """Return the files of the manifest."""
        return tuple(
            FileEntry(path=each.path, digest=each.digest, size_bytes=each.size_bytes, is_executable=each.is_executable)
            for each in self.manifest
        )


class UploadBlobsParams(Params):
    """Parameters of `repair.upload_blobs`: contents as base64."""

    contents: list[Base64] = Field(default_factory=list, max_length=_MOST_FILES)
