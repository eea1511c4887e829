"""Best of n: several independent samples of one prompt, of which a verifier chooses the best."""

from reasond_server.strategies.best_of_n.parameters import AnswerJudge, AnswerVerifier, BestOfNConfig
from reasond_server.strategies.best_of_n.strategy import BestOfN

__all__ = ["AnswerJudge", "AnswerVerifier", "BestOfN", "BestOfNConfig"]
