"""Quotas of tenants in a store: no tenant can fill it for all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from reasond_server.errors.limits import StoreFullError
from reasond_server.types.values import value


class TenantQuotaError(StoreFullError):
    """One tenant has as much in the store as it may have; the store takes what other tenants write."""


@value
class TenantQuota:
    """The most that one tenant may have in a store; None sets no bound.

    Beside others it may have less: `share` of what their open executions leave of the store, so that no number of
    tenants fills it.

    Attributes:
        waiting: suspended executions of one kind of work.
        max_bytes: bytes of the logs of open executions, that is, running and suspended ones.
        share: the share of what others leave, at most 1.
        store_bytes: the bytes that the store takes of all tenants.
    """

    waiting: int | None = None
    max_bytes: int | None = None
    share: float = 1.0
    store_bytes: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether there is any bound."""
        return self.waiting is not None or self.max_bytes is not None

    def beside(self, open_bytes: int) -> TenantQuota:
        """Return the quota of a tenant beside others that have so many bytes in open executions."""
        if self.store_bytes is None or self.share >= 1:
            return self
        left = max(1, int((self.store_bytes - open_bytes) * self.share))
        return replace(self, max_bytes=left if self.max_bytes is None else min(self.max_bytes, left))

    def require_room(self, *, kind: str, waiting: Mapping[str, int], open_bytes: int) -> None:
        """Refuse another execution of `kind` to a tenant that has so much already; `waiting` is by kind.

        Raises:
            TenantQuotaError: a bound is reached.
        """
        if self.waiting is not None and waiting.get(kind, 0) >= self.waiting:
            what = f"suspended executions of the kind {kind}"
            raise _build_error(what, waiting[kind], self.waiting, keys="tenant_waiting")
        if self.max_bytes is not None and open_bytes >= self.max_bytes:
            raise _build_error(
                "bytes in open executions", open_bytes, self.max_bytes, keys="tenant_bytes, tenant_share or its bound"
            )


UNBOUNDED = TenantQuota()


@value
class TenantShare:
    """What an operator allows one tenant of any store.

    Attributes:
        share: the largest share that its open executions may take of what those of other tenants leave of the bounds
            of a store; 1 sets no bound.
        waiting: most suspended executions of a kind; 0 sets no bound.
        max_bytes: most bytes in open executions; 0 sets no bound.
    """

    share: float = 1.0
    waiting: int = 0
    max_bytes: int = 0

    def build_quota(self, *, store_bytes: int = 0) -> TenantQuota:
        """Return the quota of a tenant in a store that takes so many bytes; 0: it has no bound."""
        own = TenantQuota(
            waiting=self.waiting or None,
            max_bytes=self.max_bytes or None,
            share=self.share,
            store_bytes=store_bytes or None,
        )
        return own.beside(open_bytes=0)


NO_SHARE = TenantShare()


def _build_error(what: str, value: int, limit: int, *, keys: str) -> TenantQuotaError:
    return TenantQuotaError(
        f"Your tenant has {value} {what}, and the store keeps {limit} of one tenant at most",
        remedy=f"Finish or cancel some of them, wait until others have, or have the operator raise [store] {keys}.",
        metadata={"tenant_quota": what, "value": str(value), "limit": str(limit)},
    )
