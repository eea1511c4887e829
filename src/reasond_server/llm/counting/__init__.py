"""Counting tokens before a call: exactly, by a tokenizer at hand, by a calibrated estimate, or by bytes.

Nothing here calls a server; what a server counts is `ChatModel.count_exactly`.
"""

from reasond_server.llm.counting.choosing import counter_for
from reasond_server.llm.counting.estimate import EstimatingCounter
from reasond_server.llm.counting.template import Forkable, Learner, fork_of
from reasond_server.llm.counting.utf8_bytes import ByteCounter
from reasond_server.llm.counting.word_pieces import WordPieceCounter

__all__ = ["ByteCounter", "EstimatingCounter", "Forkable", "Learner", "WordPieceCounter", "counter_for", "fork_of"]
