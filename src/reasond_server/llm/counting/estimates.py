"""Upper bounds on tokens without a tokenizer: a calibrated estimate from the kinds of characters, and UTF-8 bytes.

The estimate sorts a text's bytes into five kinds. Each kind costs a fixed share of a token per byte, times a factor
that is learnt for the model (`Calibration`). No byte costs more than one token, so the estimate of a text never exceeds
its size in bytes. A prompt costs a learnt constant in addition to its texts. Costs are integers, in thousandths of a
token: the estimate of a joined text is the sum of its parts, rounded once.

The calibration learns from the usage that servers report. The reported tokens are modelled as a linear function of the
uncalibrated estimate of a prompt: `constant + slope * estimated`. The slope depends on the tokenizer. The constant
depends on the server, whose template may add hundreds of tokens to each call. Each report updates both, like a Kalman
filter: a short prompt changes mostly the constant, a long prompt mostly the slope. A report far off the line is
doubtful: it is used only if the next report confirms it. A single false report therefore changes neither constant nor
slope. A change of the server or of the language is learnt from its second call.
"""

from __future__ import annotations

import math
import string
import sys
from dataclasses import asdict, replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from reasond_server.llm.counting.learners import read_number
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.types import Json

# Before any report, the constant is 0 with a deviation of 100 tokens, and the slope is 1 with a deviation of 0.5. Over
# the tokenizers and languages of decision 0026 the slope is between 0.3 and 2.5.
_CONSTANT_VARIANCE = 100.0**2
_SLOPE_VARIANCE = 0.5**2
# A prompt of at least this size changes the slope more than the constant.
_LONG_TOKENS = math.sqrt(_CONSTANT_VARIANCE / _SLOPE_VARIANCE)
# The usual distance of reports from the line: a share of the prompt plus a fixed number of tokens.
_NOISE_SHARE, _NOISE_TOKENS = 0.2, 8.0
# The uncertainty that each report adds, because texts and servers change.
_CONSTANT_DRIFT, _SLOPE_DRIFT = 10.0**2, 0.1**2
_DOUBTFUL_DEVIATIONS = 5.0

_LEAST_SLOPE, _MOST_SLOPE = 0.25, 8.0
_MOST_CONSTANT = 1_000_000.0
_CUT_PROMPT = 0.5 * _LEAST_SLOPE

_FIRST_MARGIN, _LEAST_MARGIN, _MOST_MARGIN = 0.4, 0.1, 1.0
_DEVIATIONS = 3.0
_DEVIATION_WEIGHT, _MOST_DISTANCE = 0.2, 1.0
_CONSTANT_MARGIN = 0.1
_MOST_SNAPSHOT = 1e15
_ROUNDING = 1.001


@value
class Calibration:
    """The line that was learnt so far, and its uncertainty.

    Attributes:
        constant: tokens that the server adds to every prompt, at least 0.
        slope: reported tokens for each token of an uncalibrated estimate.
        constant_variance: variance of the constant; `slope_variance` and `covariance` are the rest of the covariance
            matrix.
        deviation: mean distance of reports from the line, as a share of the expected tokens.
        reports: number of accepted reports.
        doubted_estimated: uncalibrated estimate of the previous report if that report was doubtful, else 0.
        doubted_reported: reported tokens of the previous report if it was doubtful.
    """

    constant: float = 0.0
    slope: float = 1.0
    constant_variance: float = _CONSTANT_VARIANCE
    slope_variance: float = _SLOPE_VARIANCE
    covariance: float = 0.0
    deviation: float = _FIRST_MARGIN / _DEVIATIONS
    reports: int = 0
    doubted_estimated: float = 0.0
    doubted_reported: int = 0

    @property
    def margin(self) -> float:
        """The share by which estimates are raised: 0.4 until a long prompt is reported, then between 0.1 and 1."""
        unknown = _FIRST_MARGIN * self.slope_variance / _SLOPE_VARIANCE
        return min(_MOST_MARGIN, max(_LEAST_MARGIN, unknown, _DEVIATIONS * self.deviation))

    @property
    def upper_slope(self) -> float:
        """Upper bound of the slope."""
        return self.slope * (1 + self.margin)

    @property
    def upper_constant(self) -> float:
        """Upper bound of the constant, in tokens."""
        return self.constant * (1 + _CONSTANT_MARGIN)

    def add_report(self, *, estimated: float, reported: int) -> Calibration:
        """Return the calibration after one more report.

        A report far below the estimate is ignored: the count is missing, or the server cut the prompt.

        Args:
            estimated: uncalibrated estimate of the prompt, in tokens.
            reported: tokens of the prompt, as the server reported them.
        """
        if estimated <= 0 or reported < _CUT_PROMPT * estimated:
            return self
        moved = _move(self, *_drift(self), estimated, reported)
        if moved is None and self.doubted_estimated:
            doubted = self.doubted_estimated, self.doubted_reported
            wide = _widen(self, *doubted)
            other = _move(wide, wide.constant_variance, wide.slope_variance, *doubted)
            moved = None if other is None else _move(other, *_drift(other), estimated, reported)
        if moved is not None:
            return moved
        constant_variance, slope_variance = _drift(self)
        return replace(
            self,
            constant_variance=constant_variance,
            slope_variance=slope_variance,
            deviation=_find_deviation(self, slope_variance, estimated, reported),
            doubted_estimated=estimated,
            doubted_reported=reported,
        )

    def snapshot(self) -> Json:
        """Return the calibration as JSON."""
        return asdict(self)

    @classmethod
    def restore(cls, snapshot: Json) -> Calibration:
        """Return the calibration of a snapshot.

        Raises:
            InternalError: `snapshot` is not a snapshot of a calibration.
        """
        deviation: float = read_number(snapshot, "deviation", least=0.0, most=_MOST_SNAPSHOT)
        reports = int(read_number(snapshot, "reports", least=0, most=sys.maxsize))
        constant_variance = read_number(snapshot, "constant_variance", least=0.0, most=_MOST_SNAPSHOT)
        slope_variance = read_number(snapshot, "slope_variance", least=0.0, most=_MOST_SNAPSHOT)
        covariance = math.sqrt(constant_variance * slope_variance) * _ROUNDING
        return cls(
            constant=read_number(snapshot, "constant", least=0.0, most=_MOST_CONSTANT),
            slope=read_number(snapshot, "slope", least=_LEAST_SLOPE, most=_MOST_SLOPE),
            constant_variance=constant_variance,
            slope_variance=slope_variance,
            covariance=read_number(snapshot, "covariance", least=-covariance, most=covariance),
            deviation=deviation,
            reports=reports,
            doubted_estimated=read_number(snapshot, "doubted_estimated", least=0.0, most=_MOST_SNAPSHOT),
            doubted_reported=int(read_number(snapshot, "doubted_reported", least=0, most=_MOST_SNAPSHOT)),
        )


def _drift(calibration: Calibration) -> tuple[float, float]:
    """Return larger variances of constant and slope, at most their initial values."""
    constant_variance, slope_variance = calibration.constant_variance, calibration.slope_variance
    if constant_variance < _CONSTANT_VARIANCE:
        constant_variance = min(_CONSTANT_VARIANCE, constant_variance + _CONSTANT_DRIFT)
    if slope_variance < _SLOPE_VARIANCE:
        slope_variance = min(_SLOPE_VARIANCE, slope_variance + _SLOPE_DRIFT)
    return constant_variance, slope_variance


def _widen(calibration: Calibration, estimated: float, reported: int) -> Calibration:
    """Return the same line with variances so large that this report is believable."""
    distance = abs(reported - calibration.constant - calibration.slope * estimated)
    is_long = estimated >= _LONG_TOKENS
    return replace(
        calibration,
        constant_variance=_CONSTANT_VARIANCE if is_long else max(_CONSTANT_VARIANCE, distance**2),
        slope_variance=max(_SLOPE_VARIANCE, (distance / estimated) ** 2) if is_long else _SLOPE_VARIANCE,
        covariance=0.0,
    )


def _move(
    calibration: Calibration, constant_variance: float, slope_variance: float, estimated: float, reported: int
) -> Calibration | None:
    """Return the calibration with the line moved towards a report; None if the report is too far off the line.

    The variances are those before the report.
    """
    covariance = calibration.covariance
    distance = reported - calibration.constant - calibration.slope * estimated
    constant_share = constant_variance + estimated * covariance
    slope_share = covariance + estimated * slope_variance
    noise = (_NOISE_SHARE * estimated) ** 2 + _NOISE_TOKENS**2
    # The variance of the distance between a report and the line.
    variance = constant_share + estimated * slope_share + noise
    if distance**2 > _DOUBTFUL_DEVIATIONS**2 * variance:
        return None
    constant = calibration.constant + distance * constant_share / variance
    slope = calibration.slope + distance * slope_share / variance
    new_constant_variance = constant_variance - constant_share**2 / variance
    new_slope_variance = slope_variance - slope_share**2 / variance
    # Nearly every result is within its bounds, and looking takes less time than a call.
    if not 0.0 <= constant <= _MOST_CONSTANT:
        constant = min(_MOST_CONSTANT, max(0.0, constant))
    if not _LEAST_SLOPE <= slope <= _MOST_SLOPE:
        slope = min(_MOST_SLOPE, max(_LEAST_SLOPE, slope))
    return Calibration(
        constant=constant,
        slope=slope,
        constant_variance=max(0.0, new_constant_variance),
        slope_variance=max(0.0, new_slope_variance),
        covariance=covariance - constant_share * slope_share / variance,
        deviation=_find_deviation(calibration, slope_variance, estimated, reported),
        reports=calibration.reports + 1,
    )


def _find_deviation(calibration: Calibration, slope_variance: float, estimated: float, reported: int) -> float:
    """Return the deviation after a report; an uncertain slope makes the change smaller, an unknown one prevents it."""
    if slope_variance >= _SLOPE_VARIANCE:
        return calibration.deviation
    expected = calibration.constant + calibration.slope * estimated
    distance = min(_MOST_DISTANCE, abs(reported - expected) / expected)
    known = 1 - slope_variance / _SLOPE_VARIANCE
    weight = _DEVIATION_WEIGHT * known * estimated / (estimated + _LONG_TOKENS)
    return calibration.deviation + weight * (distance - calibration.deviation)


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
