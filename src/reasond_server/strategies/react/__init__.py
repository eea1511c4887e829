"""ReAct: cycles of thought, action and observation until the model can answer. Tools run only if the task allows it."""

from reasond_server.strategies.react.strategy import React, ReactConfig

__all__ = ["React", "ReactConfig"]
