"""What the checks of stores require; each raises ConformanceError with what was found instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.testing.conformance import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from reasond_server.errors import ReasondError


def same(found: object, expected: object) -> None:
    """Require that both are equal."""
    if found != expected:
        raise ConformanceError(f"expected {expected!r}, found {found!r}")


def nothing(found: object) -> None:
    """Require that there is nothing."""
    if found is not None:
        raise ConformanceError(f"expected nothing, found {found!r}")


def refused(kind: type[ReasondError], found: ReasondError | None) -> None:
    """Require a refusal of that kind."""
    if not isinstance(found, kind):
        raise ConformanceError(f"expected to be refused by {kind.__name__}, found {found!r}")


async def raises(kind: type[ReasondError], call: Awaitable[object]) -> None:
    """Require that the call raises an error of that kind."""
    try:
        result = await call
    except kind:
        return
    raise ConformanceError(f"expected {kind.__name__}, found {result!r}")
