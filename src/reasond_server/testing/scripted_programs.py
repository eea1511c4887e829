"""Programs that a test runs by a function, for strategies that run programs of the model.

programs = FunctionPrograms(lambda source: "42")
outcome = await ProgramOfThought().reason("What is six times seven?", model=model, programs=programs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.tools.programs import ProgramResult

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FunctionPrograms"]


class FunctionPrograms:
    """Returns `result(source)` for each program; a text is what the program prints. Nothing is run.

    Attributes:
        sources: every program so far, in order.
        materials: the material that each was given.
        answers: the answer that each was given; empty for none.
    """

    is_available = True

    def __init__(self, result: Callable[[str], str | ProgramResult]) -> None:
        self._result = result
        self.sources: list[str] = []
        self.materials: list[str] = []
        self.answers: list[str] = []

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:  # noqa: ARG002 - the port's
        """Return the result of the function."""
        self.sources.append(source)
        self.materials.append(material)
        self.answers.append(answer)
        result = self._result(source)
        return ProgramResult(output=result) if isinstance(result, str) else result
