"""What a worked-out question consists of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """An answer and the steps that lead to it, each one sentence or equation."""

    steps: tuple[str, ...]
    answer: str
