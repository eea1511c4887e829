"""Upper bounds on tokens without a tokenizer: a calibrated estimate from the kinds of characters, and UTF-8 bytes.

The estimate sorts a text's bytes into five kinds. Each kind costs a fixed share of a token per byte, times a factor
that is learnt for the model (`calibration`). No byte costs more than one token, so the estimate of a text never exceeds
its size in bytes. A prompt costs a learnt constant in addition to its texts.

Costs are integers, in thousandths of a token: the estimate of a joined text is the sum of its parts, rounded once.
"""

from __future__ import annotations

import string
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from reasond_server.llm.counting.calibration import Calibration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.types import Json


_READ_CONTENT: Final = attrgetter("content")
_TOKEN = 1000
_MESSAGE_TOKENS = 8
_LETTERS = string.ascii_letters.encode()
_DIGITS = string.digits.encode()
_BLANKS = string.whitespace.encode()
_DIGIT_MARK, _BLANK_MARK, _OTHER_MARK = b"0", b" ", b"\x80"
# What stands for each byte that is no letter: the mark of its kind, and any other ASCII for a sign.
_MARKS = (
    bytes.maketrans(_DIGITS, _DIGIT_MARK * len(_DIGITS))
    .translate(bytes.maketrans(_BLANKS, _BLANK_MARK * len(_BLANKS)))
    .translate(bytes.maketrans(bytes(range(128, 256)), _OTHER_MARK * 128))
)
# Thousandths of a token per byte, before calibration, rounded up from the counts of current tokenizers for English
# prose (4.5 letters per token, most spaces are free), for code, and for other scripts.
_LETTER, _DIGIT, _BLANK, _SIGN, _OTHER = 220, 450, 120, 650, 420
# The same for `count_at_least`: less than any of the tokenizers and languages of decision 0026 needs. White space and
# signs can be nearly free: one token may cover 128 bytes.
_LEAST_LETTER, _LEAST_DIGIT, _LEAST_OTHER = 140, 250, 80
_MOST_BYTES_PER_TOKEN = 128


_UNCALIBRATED: Final = Calibration()


class EstimatingCounter:
    """Returns upper estimates. One instance serves one model; a report takes effect with the next count.

    If several threads report at the same time, one of the reports may be lost, never more. `calibration` is what was
    learnt from all reports so far.
    """

    _parent: EstimatingCounter | None = None

    def __init__(self, *, message_tokens: int = _MESSAGE_TOKENS, calibration: Calibration = _UNCALIBRATED) -> None:
        self._message_tokens = message_tokens
        self.calibration = calibration

    @property
    def is_exact(self) -> bool:
        """Always False: the counts are estimates."""
        return False

    def count_text(self, text: str) -> int:
        """Return an upper estimate of the tokens of `text` alone."""
        return _round_up(_make_cost_function(self.calibration.upper_slope)(text))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return an upper estimate of a call's input tokens, with an allowance for the markup of each message."""
        calibration = self.calibration
        marks = int(self._message_tokens * calibration.upper_slope * _TOKEN) * len(messages)
        template = int(calibration.upper_constant * _TOKEN)
        return _round_up(template + marks + _make_cost_function(calibration.upper_slope)(_join_contents(messages)))

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` whose estimate is at most `tokens` tokens."""
        return text[: self._measure(tokens, len(text), lambda low, high: text[low:high])]

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` whose estimate is at most `tokens` tokens."""
        length = len(text)
        return text[length - self._measure(tokens, length, lambda low, high: text[length - high : length - low]) :]

    def _measure(self, tokens: int, length: int, cut: Callable[[int, int], str]) -> int:
        """Return the most characters whose estimate is at most `tokens`; `cut` returns those from one to another."""
        cost, left = _make_cost_function(self.calibration.upper_slope), max(0, tokens) * _TOKEN
        low, high = 0, min(length, left)  # no character costs less than a thousandth
        while low < high:
            middle = min((low + high + 1) // 2, low + max(1, left // _BLANK))
            price = cost(cut(low, middle))
            if price <= left:
                low, left = middle, left - price
            else:
                high = middle - 1
        return low

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """Correct the calibration: a prompt of `messages` had `reported` tokens."""
        plain = _make_cost_function(1.0)
        estimated = self._message_tokens * len(messages) + plain(_join_contents(messages)) / _TOKEN
        self.observe(estimated=estimated, reported=reported)

    def observe(self, *, estimated: float, reported: int) -> None:
        """Correct the calibration: a prompt with the uncalibrated estimate `estimated` had `reported` tokens."""
        self.calibration = self.calibration.add_report(estimated=estimated, reported=reported)
        if self._parent is not None:
            self._parent.observe(estimated=estimated, reported=reported)

    def fork(self) -> EstimatingCounter:
        """Return a copy that learns on its own and passes its reports on to this counter."""
        forked = EstimatingCounter(message_tokens=self._message_tokens, calibration=self.calibration)
        forked._parent = self
        return forked

    def snapshot(self) -> Json:
        """Return the calibration."""
        return self.calibration.snapshot()

    def restore(self, snapshot: Json) -> None:
        """Replace the calibration. Raises InternalError: `snapshot` is not a snapshot of a calibration."""
        self.calibration = Calibration.restore(snapshot)


# Building the function takes longer than one call of it.
@lru_cache(maxsize=64)
def _make_cost_function(factor: float) -> Callable[[str], int]:
    """Return a function from a text to its cost in thousandths of a token."""
    letter, digit, blank, sign, other = (
        min(_TOKEN, max(1, round(share * factor))) for share in (_LETTER, _DIGIT, _BLANK, _SIGN, _OTHER)
    )

    def cost(text: str) -> int:
        letters, digits, blanks, signs, others = _count_kinds(text)
        return letter * letters + digit * digits + blank * blanks + sign * signs + other * others

    return cost


def _count_kinds(text: str) -> tuple[int, int, int, int, int]:
    """Return the bytes of `text` that are letters, digits, white space, other ASCII and not ASCII."""
    encoded = _encode(text)
    # Most bytes are letters, and counting the other kinds without them takes a fraction of the time.
    rest = encoded.translate(_MARKS, _LETTERS)
    left = len(rest)
    digits, blanks = rest.count(_DIGIT_MARK), rest.count(_BLANK_MARK)
    others = 0 if text.isascii() else rest.count(_OTHER_MARK)
    return len(encoded) - left, digits, blanks, left - digits - blanks - others, others


def count_at_least(text: str) -> int:
    """Return a lower estimate of the tokens of `text` by any tokenizer."""
    letters, digits, blanks, signs, others = _count_kinds(text)
    cost = _LEAST_LETTER * letters + _LEAST_DIGIT * digits + _LEAST_OTHER * others
    return max(cost // _TOKEN, (letters + digits + blanks + signs + others) // _MOST_BYTES_PER_TOKEN)


def count_written(text: str, counter: TokenCounter) -> int:
    """Return a lower bound of the tokens that a model wrote: by `counter` if it is exact, else a lower estimate."""
    is_estimate = isinstance(counter, EstimatingCounter | ByteCounter)
    return count_at_least(text) if is_estimate else counter.count_text(text)


def _join_contents(messages: Sequence[Message]) -> str:
    """Return all contents as one text. The cost is a sum over characters, so joining does not change it."""
    return "".join(map(_READ_CONTENT, messages))


def _round_up(cost: int) -> int:
    return -(-cost // _TOKEN)


_CONTINUATION_MASK = 0b1100_0000
_CONTINUATION = 0b1000_0000


class ByteCounter:
    """Counts UTF-8 bytes: every tokenizer's token covers at least one byte, so no text has more tokens.

    The text does not show the tokens that a provider's chat template adds. The two overheads are allowances for them,
    generous for the templates in common use.

    Args:
        message_overhead: tokens allowed for the markup of each message.
        prompt_overhead: tokens allowed once per call, for the text of the template before the first message.
    """

    def __init__(self, *, message_overhead: int = 16, prompt_overhead: int = 64) -> None:
        self._message_overhead = message_overhead
        self._prompt_overhead = prompt_overhead

    @property
    def is_exact(self) -> bool:
        """Always False: the counts are upper bounds."""
        return False

    def count_text(self, text: str) -> int:
        """Return the UTF-8 bytes of `text`."""
        return len(_encode(text))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the UTF-8 bytes of all contents plus the allowances for the template."""
        contents = sum(self._message_overhead + self.count_text(message.content) for message in messages)
        return self._prompt_overhead + contents

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` bytes; characters stay whole."""
        if tokens <= 0:
            return ""
        encoded = _encode(text[:tokens])
        end = min(tokens, len(encoded))
        while end < len(encoded) and _is_continuation(encoded[end]):
            end -= 1
        return _decode(encoded[:end])

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` with at most `tokens` bytes; characters stay whole."""
        if tokens <= 0:
            return ""
        encoded = _encode(text[-tokens:])
        start = max(0, len(encoded) - tokens)
        while start < len(encoded) and _is_continuation(encoded[start]):
            start += 1
        return _decode(encoded[start:])


def _encode(text: str) -> bytes:
    """Return `text` in UTF-8; a lone surrogate, which a model may write, becomes three bytes."""
    return text.encode("utf-8", "surrogatepass")


def _decode(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogatepass")


def _is_continuation(byte: int) -> bool:
    return byte & _CONTINUATION_MASK == _CONTINUATION
