"""What the checks of all three conformance suites share: how they fail, and how all of them are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from reasond_server.errors import ReasondError


class ConformanceError(AssertionError):
    """The model, the strategy or the store does not do what its port says."""


async def verified(names: Iterable[str], check: Callable[[str], Awaitable[str]]) -> Mapping[str, str]:
    """Run every check; return why some did not apply.

    Raises:
        ConformanceError: some do not hold; all of them are named.
    """
    skipped: dict[str, str] = {}
    failures: list[str] = []
    for name in names:
        try:
            if reason := await check(name):
                skipped[name] = reason
        except ConformanceError as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise ConformanceError("; ".join(failures))
    return skipped


def require(is_so: bool, complaint: str) -> None:  # noqa: FBT001 - reads as a sentence: require this, or else
    """Raise ConformanceError with `complaint` unless it is so."""
    if not is_so:
        raise ConformanceError(complaint)


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
