"""Regular expressions that count the characters that each call reads; no other thread runs during a call."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import ModuleType

    import pytest


@dataclass(slots=True)
class Reading:
    """The characters that each call reads, and those that all calls in one turn of the event loop read."""

    calls: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=lambda: [0])
    _loop_thread: int | None = None

    def add(self, characters: int) -> None:
        """Count a call."""
        self.calls.append(characters)
        if threading.get_ident() == self._loop_thread:
            self.turns[-1] += characters

    @asynccontextmanager
    async def watch_turns(self) -> AsyncIterator[None]:
        """Separate the turns of the event loop within the block."""
        loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

        def begin_turn() -> None:
            if self.turns[-1]:
                self.turns.append(0)
            if self._loop_thread is not None:
                loop.call_soon(begin_turn)

        begin_turn()
        try:
            yield
        finally:
            self._loop_thread = None


class WatchedPattern:
    """Stands for a compiled pattern and reports how many characters each call reads at most."""

    def __init__(self, pattern: re.Pattern[str], reading: Reading) -> None:
        self._pattern = pattern
        self._reading = reading

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        """Replace every match; a call reads the whole text."""
        self._reading.add(len(text))
        return self._pattern.sub(replacement, text)

    def findall(self, text: str, start: int = 0, end: int | None = None) -> list[str]:
        """Return all matches; a call reads the text from `start` to `end`."""
        end = len(text) if end is None else end
        self._reading.add(end - start)
        return self._pattern.findall(text, start, end)

    def finditer(self, text: str, start: int = 0, end: int | None = None) -> Iterator[re.Match[str]]:
        """Yield all matches; other threads can run between two of them."""
        end = len(text) if end is None else end
        for found in self._pattern.finditer(text, start, end):
            self._reading.add(found.end() - start)
            yield found
            start = found.end()
        self._reading.add(end - start)

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        """Return the next match; a call reads the text up to its end."""
        found = self._pattern.search(text, start)
        self._reading.add((found.end() if found else len(text)) - start)
        return found

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match at the beginning, which is read alone."""
        found = self._pattern.match(text)
        self._reading.add(found.end() if found else 0)
        return found


def watch_patterns(patched: pytest.MonkeyPatch, *modules: ModuleType) -> Reading:
    """Watch every pattern of `modules`; return what they read from now on."""
    reading = Reading()
    for module in modules:
        for name, pattern in list(vars(module).items()):
            if isinstance(pattern, re.Pattern):
                patched.setattr(module, name, WatchedPattern(pattern, reading))
    return reading
