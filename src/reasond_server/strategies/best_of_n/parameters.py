"""The parameters of best_of_n."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS
from reasond_server.context.scores import pair_with_pivots
from reasond_server.strategies.strategy import StrategyConfig

_MAX_PROGRAM_CHARACTERS: Final = 16_384


class AnswerVerifier(StrEnum):
    """What tells good solutions from bad ones: the model as a judge, the schema of the task's answer, or a program."""

    JUDGE = "judge"
    SCHEMA = "schema"
    PROGRAM = "program"


class AnswerJudge(StrEnum):
    """What the score of the judge is: what it wrote, or the expectation over all digits that it could have written.

    In a tournament, the answers are compared with the two best by that expectation, and their shares are the scores.
    """

    WRITTEN = "written"
    EXPECTED_SCORE = "expected_score"
    TOURNAMENT = "tournament"


class BestOfNConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    samples: Annotated[int, Field(ge=1, le=40, description="Samples to choose from.")] = 5
    temperature: Annotated[
        float,
        Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Middle of the temperatures; above 0 for 2 samples up."),
    ] = 0.7
    max_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write per sample.")
    ] = 4096
    max_judge_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=8192, description="Most tokens the model may write per judgement.")
    ] = 1024
    min_score: Annotated[
        float,
        Field(ge=0.0, le=1.0, allow_inf_nan=False, description="Least score of an answer that is given."),
    ] = 0.0
    # Not strict, because JSON has no enums, and strict Pydantic refuses strings for them.
    verifier: Annotated[
        AnswerVerifier,
        Field(
            strict=False,
            description="What scores solutions: 'judge' (the model), 'schema' (of the answer) or 'program' (yours).",
        ),
    ] = AnswerVerifier.JUDGE
    judge: Annotated[
        AnswerJudge,
        Field(
            strict=False,
            description="Scores: 'written', 'expected_score' by the digits' probabilities, or a 'tournament' of pairs.",
        ),
    ] = AnswerJudge.WRITTEN
    check_program: Annotated[
        str,
        Field(
            max_length=_MAX_PROGRAM_CHARACTERS,
            description="Python program for the verifier 'program': exits with 0 if the answer in answer.txt is right.",
        ),
    ] = ""
    max_check_s: Annotated[
        float, Field(ge=1.0, le=300.0, allow_inf_nan=False, description="Most seconds that one check may run.")
    ] = 10.0

    @property
    def runs_programs(self) -> bool:
        """Whether a program verifies the answers."""
        return self.verifier is AnswerVerifier.PROGRAM

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        compared = len(pair_with_pivots(self.samples)) if self.judge is AnswerJudge.TOURNAMENT else 0
        return self.samples * (1 if self.verifier is AnswerVerifier.SCHEMA else 2) + compared
