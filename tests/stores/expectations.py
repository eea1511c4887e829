"""Assertions for the checks of the stores."""

from collections.abc import Awaitable

from reasond_server.errors.base import ReasondError


class StoreContractError(AssertionError):
    """A store violates its contract."""


def same(found: object, expected: object) -> None:
    """Require that both values are equal."""
    if found != expected:
        raise StoreContractError(f"expected {expected!r}, found {found!r}")


def nothing(found: object) -> None:
    """Require None."""
    if found is not None:
        raise StoreContractError(f"expected nothing, found {found!r}")


def expect_refusal(kind: type[ReasondError], found: ReasondError | None) -> None:
    """Require an error of that kind."""
    if not isinstance(found, kind):
        raise StoreContractError(f"expected to be refused by {kind.__name__}, found {found!r}")


async def raises(kind: type[ReasondError], call: Awaitable[object]) -> None:
    """Require that the call raises an error of that kind."""
    try:
        result = await call
    except kind:
        return
    raise StoreContractError(f"expected {kind.__name__}, found {result!r}")
