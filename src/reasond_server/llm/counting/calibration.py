"""The calibration of token estimates: it learns a model's tokenizer and template from the usage that servers report.

The reported tokens are modelled as a linear function of the uncalibrated estimate of a prompt:
`constant + slope * estimated`. The slope depends on the tokenizer. The constant depends on the server, whose template
may add hundreds of tokens to each call. Each report updates both, like a Kalman filter: a short prompt changes mostly
the constant, a long prompt mostly the slope.

A report far off the line is doubtful: it is used only if the next report confirms it. A single false report therefore
changes neither constant nor slope. A change of the server or of the language is learnt from its second call.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from reasond_server.llm.counting.learners import read_number
from reasond_server.types.values import value

if TYPE_CHECKING:
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
