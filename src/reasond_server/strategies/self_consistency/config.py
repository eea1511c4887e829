"""The parameters of self-consistency."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS
from reasond_server.strategies.strategy import StrategyConfig


class SelfConsistencyConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    samples: Annotated[int, Field(ge=1, le=40, description="Most samples; fewer where the vote is decided early.")] = 5
    temperature: Annotated[
        float,
        Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Middle of the temperatures; above 0 for 2 samples up."),
    ] = 0.7
    max_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write per sample.")
    ] = 4096
    min_agreement: Annotated[
        float,
        Field(ge=0.0, le=1.0, allow_inf_nan=False, description="Share of the votes that the winner needs."),
    ] = 0.0
