"""Shared by the checks of every port: how they run, and how they report failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping


class ConformanceError(AssertionError):
    """The model or the strategy breaks the contract of its port."""


async def run_checks(names: Iterable[str], check: Callable[[str], Awaitable[str]]) -> Mapping[str, str]:
    """Run every check; return the reasons of those that did not apply, by name.

    Raises:
        ConformanceError: some checks failed; the message names all of them.
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
    """Raise ConformanceError with `complaint` unless `is_so`."""
    if not is_so:
        raise ConformanceError(complaint)
