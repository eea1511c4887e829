"""ReAct: thought, action, observation, until the model can answer; tools run only where the task allows it."""

from reasond_server.strategies.react.config import ReactConfig
from reasond_server.strategies.react.strategy import React

__all__ = ["React", "ReactConfig"]
