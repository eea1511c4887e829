"""The section [store]: where executions and agents are kept, and for how long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.config.section import Section
from reasond_server.types.policy_sections import freeze

_KIBI: Final = 1024
_MEBI: Final = 1024 * _KIBI
_DAY_S: Final = 86_400
_LONGEST_RETENTION_S: Final = 3650 * _DAY_S
_URL: Final = re.compile(r"(memory:|sqlite:///.+|postgres(ql)?://.*)?", re.DOTALL)

TenantName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Retention = Annotated[float, Field(ge=1, le=_LONGEST_RETENTION_S)]


def _store_url(value: str) -> str:
    """Return `value` if its form is supported."""
    if not _URL.fullmatch(value):
        message = 'must be "memory:", "sqlite:///path", "postgresql://user:password@host/database" or empty'
        raise ValueError(message)
    return value


RetentionTable = Annotated[Mapping[TenantName, Retention], AfterValidator(freeze)]


class StoreSettings(Section):
    """Where executions and agents are stored, and for how long."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        default="",
        max_length=4096,
        description='Where executions and agents are kept: "memory:" (they end with the process), '
        '"sqlite:///path" (one server) or "postgresql://user:password@host/database" (any number of servers, needs '
        "the extra postgres). Empty: a SQLite file in data_dir, and with --dev in memory. A password is better given "
        "by REASOND__STORE__URL.",
    )
    data_dir: str = Field(
        default="",
        max_length=4096,
        description="Folder of the SQLite file reasond.db, on a local disk; empty: reasond in $XDG_STATE_HOME, else "
        "in ~/.local/state.",
    )
    retention_s: float = Field(
        default=3600.0,
        ge=1,
        le=_LONGEST_RETENTION_S,
        description="Seconds that an execution is kept after its end.",
    )
    record_content: bool = Field(
        default=True,
        description="Whether questions, materials, steps and answers are stored; false: only what is no content, so "
        "that a run can be resumed while it lives, but neither read afterwards nor recovered.",
    )
    record_prompts: bool = Field(
        default=False,
        description="Whether the prompts and replies of model calls are stored with an execution, as long as it is "
        "kept: up to 65,536 characters of a call and 1,048,576 of an execution. Never without record_content. On in "
        "the demo.",
    )
    lease_s: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="Seconds after which a server that gives no sign of life loses its runs to another one.",
    )
    reattach_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="Seconds that a recovered run waits for somebody to follow it again, unless it is kept running; "
        "also one whose client left a stream of /v1/responses, and one that a unary call with a request id left if its "
        "calls are not kept.",
    )
    synchronous: Literal["normal", "full"] = Field(
        default="normal",
        description="When SQLite waits for the disk: normal survives a crash of the process, full (slower) also the "
        "loss of power.",
    )
    max_file_bytes: int = Field(
        default=0,
        ge=0,
        le=1024 * 1024 * _MEBI,
        description="Largest size of the SQLite file, or of the executions that PostgreSQL holds, "
        "above 0; 0 sets no bound but the disk.",
    )
    max_bytes: int = Field(
        default=64 * _MEBI,
        ge=64 * _KIBI,
        le=64 * 1024 * _MEBI,
        description="Most bytes that executions take in memory; a file and PostgreSQL have max_file_bytes.",
    )
    tenant_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Largest share that the open executions of one tenant may take of what those of others leave of "
        "max_bytes or max_file_bytes. 1 sets no bound.",
    )
    tenant_waiting: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Most turns of one tenant that wait for their client, in any store; 0 sets no bound.",
    )
    tenant_bytes: int = Field(
        default=0,
        ge=0,
        le=1024 * 1024 * _MEBI,
        description="Most bytes in the open executions of one tenant, in any store; 0 sets no bound but tenant_share.",
    )
    clock_hold_s: float = Field(
        default=3600.0,
        ge=0,
        le=_LONGEST_RETENTION_S,
        description="Seconds that nothing expires by a clock that jumped by more than a minute, or is that far off the "
        "time that the store had last; after that it counts. 0: at once. PostgreSQL tells the time itself.",
    )
    tenant_retention_s: RetentionTable = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=10_000,
        description="retention_s of single tenants, by their name in the token.",
    )
