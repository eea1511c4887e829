"""What the checks of the stores expect, and how they fail."""

from collections.abc import Awaitable

from reasond_server.errors import ReasondError


class StoreContractError(AssertionError):
    """A store does not do what its port says."""


def same(found: object, expected: object) -> None:
    """Require that both are equal."""
    if found != expected:
        raise StoreContractError(f"expected {expected!r}, found {found!r}")


def nothing(found: object) -> None:
    """Require that there is nothing."""
    if found is not None:
        raise StoreContractError(f"expected nothing, found {found!r}")


def expect_refusal(kind: type[ReasondError], found: ReasondError | None) -> None:
    """Require a refusal of that kind."""
    if not isinstance(found, kind):
        raise StoreContractError(f"expected to be refused by {kind.__name__}, found {found!r}")


async def raises(kind: type[ReasondError], call: Awaitable[object]) -> None:
    """Require that the call raises an error of that kind."""
    try:
        result = await call
    except kind:
        return
    raise StoreContractError(f"expected {kind.__name__}, found {result!r}")
