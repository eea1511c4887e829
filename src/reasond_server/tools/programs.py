"""The port to programs of models and callers: they are run apart from the server, in its sandbox, if it has one."""

from __future__ import annotations

from typing import Final, Protocol

from reasond_server.errors.repairs import SandboxUnavailableError
from reasond_server.types.values import value

MAX_OUTPUT_BYTES: Final = 64 * 1024
"""Most bytes that are kept of what a program prints."""
_SHOWN_CHARACTERS: Final = 4_000
_LEFT_OUT: Final = "…\n"


@value
class ProgramResult:
    """How a program ended.

    Attributes:
        output: what it printed, standard output and error together; of more than MAX_OUTPUT_BYTES, beginning and end.
        exit_code: its exit code; 128 and the signal's number if a signal ended it.
        elapsed_s: how long it ran, in seconds.
        exceeded: the limit that ended it, in words such as "more memory than its limit"; empty if none did.
        is_output_cut: whether some of the output is left out.
    """

    output: str
    exit_code: int = 0
    elapsed_s: float = 0.0
    exceeded: str = ""
    is_output_cut: bool = False


class ProgramRunner(Protocol):
    """Runs Python programs, without a network and within limits."""

    @property
    def is_available(self) -> bool:
        """Whether programs can be run at all."""

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:
        """Run a Python program and return how it ended.

        `material` and `answer` are the files material.txt and answer.txt of its folder, unless they are empty.
        `most_s` bounds its time and its processor time; the operator may have set lower limits.

        Raises:
            SandboxUnavailableError: it could not be run; says nothing about the program.
        """


class NoPrograms:
    """Runs nothing."""

    is_available = False

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:  # noqa: ARG002 - the port's
        """Refuse.

        Raises:
            SandboxUnavailableError: always.
        """
        raise build_refusal()


NO_PROGRAMS: Final = NoPrograms()
"""For servers without a sandbox for programs."""


def build_refusal() -> SandboxUnavailableError:
    """Return the error for a task that needs to run programs where none can be run."""
    return SandboxUnavailableError(
        "This task runs programs, and this server has no sandbox for them",
        remedy="Choose another strategy or verifier, or have the operator name a Python environment in [reasoning] "
        "program_environment and run `reasond doctor`; no token was spent.",
    )


def clip_output(output: str) -> str:
    """Return the end of an output, where an error stands."""
    return output if len(output) <= _SHOWN_CHARACTERS else _LEFT_OUT + output[-_SHOWN_CHARACTERS:]
