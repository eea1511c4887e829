"""The parameters of ReAct."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS
from reasond_server.strategies.strategy import StrategyConfig, Temperature


class ReactConfig(StrategyConfig):
    """The parameters, with the defaults and ranges of seed 001; `max_tool_calls` is our own."""

    max_iterations: Annotated[
        int, Field(ge=1, le=50, description="Most thought-action-observation cycles; the last one must answer.")
    ] = 10
    max_tokens_per_step: Annotated[
        int, Field(ge=LEAST_TOKENS, le=8192, description="Most tokens the model may write per cycle.")
    ] = 2048
    temperature: Temperature = 0.7
    allow_tool_use: Annotated[
        bool, Field(description="Whether tools may be called; needs the permission reasoning:tools.")
    ] = False
    max_tool_calls: Annotated[int, Field(ge=0, le=50, description="Most tool calls in the whole run.")] = 10

    @property
    def uses_tools(self) -> bool:
        """Whether the run may call tools."""
        return self.allow_tool_use

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return self.max_iterations
