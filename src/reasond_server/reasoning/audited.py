"""Budgets of callers whose refusals stand in the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reasond_server.access import audit
from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.types import Principal

if TYPE_CHECKING:
    from reasond_server.limits.callers import CallerLimits
    from reasond_server.llm.metering import Held, TokenAccount

MODEL_CALL = "CallModel"
"""The operation of a model call in the audit log; it is no operation of a caller, and needs no permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedAccount:
    """The budget of a caller for one execution; what it refuses is a line of the audit log."""

    account: TokenAccount
    principal: Principal
    execution_id: str

    async def reserve(self, *, least: int, most: int) -> Held:
        """See TokenAccount."""
        try:
            return await self.account.reserve(least=least, most=most)
        except TokenBudgetExhaustedError as error:
            audit.denied(MODEL_CALL, error, principal=self.principal, execution_id=self.execution_id)
            raise

    async def settle(self, held: Any, *, used: int) -> None:  # noqa: ANN401 - as TokenAccount has it
        """See TokenAccount."""
        await self.account.settle(held, used=used)


def audited_account(limits: CallerLimits, tenant: str, subject: str, execution_id: str) -> TokenAccount | None:
    """Return the budget that the model calls of an execution come from; None where nothing bounds them."""
    account = limits.account(tenant, subject)
    if account is None:
        return None
    principal = Principal(subject=subject, tenant=tenant, permissions=frozenset())
    return AuditedAccount(account=account, principal=principal, execution_id=execution_id)
