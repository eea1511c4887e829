"""The spans of a repair, with the names and attributes of seed 004.

A generator must not yield within the block of one: `RunTrace.part` says why.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from reasond_server.telemetry.spans import GENERATE_CANDIDATES, PATCH_VALIDATION, SCORE_CANDIDATES, Attributes
from reasond_server.types.usage import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.telemetry.scope import Scope
    from reasond_server.types import Usage


@dataclass(slots=True, kw_only=True)
class Generation:
    """What candidates cost; `retries` are calls that were made again, besides the attempts of the model's adapter."""

    usage: Usage = NOTHING
    retries: int = 0


@dataclass(slots=True, kw_only=True)
class Scoring:
    """The scores of candidates, 0-100."""

    scores: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Validation:
    """Whether a patch is valid."""

    is_valid: bool = False


@contextmanager
def trace_generation(trace: RunTrace, *, candidates: int, model: str) -> Iterator[Generation]:
    """Open `reasoning.generateCandidates` while `model` is asked for candidates; the caller adds what they cost."""
    made = Generation()
    asked = {"numCandidates": candidates, "modelID": model}
    with trace.part(GENERATE_CANDIDATES, asked, timed_as="generationLatencyMs") as part:
        try:
            yield made
        finally:
            retries = made.retries + (0 if part is None else part.retries)
            used = {"tokensIn": made.usage.input_tokens, "tokensOut": made.usage.output_tokens}
            _note(part, {**used, "retryCount": retries})


@contextmanager
def trace_scoring(trace: RunTrace) -> Iterator[Scoring]:
    """Open `reasoning.scoreCandidates` while critics judge candidates; the caller adds a score for each."""
    made = Scoring()
    with trace.part(SCORE_CANDIDATES, {}, timed_as="criticLatencyMs") as part:
        try:
            yield made
        finally:
            mean = {"averageCriticScore": fmean(made.scores)} if made.scores else {}
            _note(part, {"numCandidatesScored": len(made.scores), **mean})


@contextmanager
def trace_validation(trace: RunTrace, *, candidate_id: str) -> Iterator[Validation]:
    """Open `reasoning.patchValidation` while the patch of a candidate is tried; the caller says whether it is valid."""
    made = Validation()
    with trace.part(PATCH_VALIDATION, {"patchID": candidate_id}, timed_as="validationLatencyMs") as part:
        try:
            yield made
        finally:
            _note(part, {"validationStatus": "success" if made.is_valid else "failure"})


def _note(part: Scope | None, facts: Attributes) -> None:
    if part is not None and part.span is not None:
        part.span.open().set(facts)
