"""Token accounts of callers; their refusals are recorded in the audit log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from reasond_server.access import audit
from reasond_server.access.permissions import Operation
from reasond_server.types import Principal

if TYPE_CHECKING:
    from reasond_server.errors.limits import TokenBudgetExhaustedError
    from reasond_server.limits.callers import CallerLimits
    from reasond_server.llm.metered_model import TokenAccount

MODEL_CALL = Operation("CallModel")
"""The operation of a model call in the audit log; callers do not request it, and it needs no permission."""


def audited_account(limits: CallerLimits, tenant: str, subject: str, execution_id: str) -> TokenAccount | None:
    """Return the token account for the model calls of an execution; None if its tokens are not limited.

    Each refusal becomes a line of the audit log.
    """
    return limits.open_account(tenant, subject, on_refused=partial(_note_refusal, tenant, subject, execution_id))


def _note_refusal(tenant: str, subject: str, execution_id: str, error: TokenBudgetExhaustedError) -> None:
    principal = Principal(subject=subject, tenant=tenant, permissions=frozenset())
    audit.log_denied(MODEL_CALL, error, principal=principal, execution_id=execution_id)
