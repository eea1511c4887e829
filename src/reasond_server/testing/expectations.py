"""What the checks of both conformance suites share: how they fail, and how all of them are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping


class ConformanceError(AssertionError):
    """The model or the strategy does not do what its port says."""


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
