"""Self-consistency: independent samples of the same reasoning, and a vote over their final answers."""

from reasond_server.strategies.self_consistency.config import SelfConsistencyConfig
from reasond_server.strategies.self_consistency.strategy import SelfConsistency

__all__ = ["SelfConsistency", "SelfConsistencyConfig"]
