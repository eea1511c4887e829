"""Charts as SVG, readable on light and on dark pages; no package needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 210, 44, 48
_COLOURS = ("#3b82f6", "#f97316", "#22a06b", "#a855f7", "#e11d48", "#0891b2")
_STYLE = (
    "text{font:13px sans-serif;fill:#333}.grid{stroke:#8888;stroke-width:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_title: str,
    dashed: Callable[[str], bool],
    dotted: Callable[[str], bool] = lambda _: False,
    ticks: Sequence[float] = (),
) -> str:
    """Return a chart of `series`: logarithmic x axis, per cent on the y axis; dashed and dotted lines reuse colours.

    Without `ticks` the x axis is marked in thousands.
    """
    shown = {name: points for name, points in series.items() if points}
    xs = [x for points in shown.values() for x, _ in points]
    ys = [y for points in shown.values() for _, y in points]
    low, high = min(xs), max(xs)
    bottom, top = 25 * math.floor(min([0.0, *ys]) / 25), 100

    def across(x: float) -> float:
        share = math.log(x / low) / math.log(high / low) if high > low else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def down(y: float) -> float:
        return _TOP + (top - y) / (top - bottom) * (_HEIGHT - _TOP - _BOTTOM)

    # The title is for screen readers too.
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="{_LEFT}" y="24" font-weight="bold">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{escape(x_title)}</text>',
    ]
    for y in range(bottom, top + 1, 25):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{down(y) + 4:.1f}" text-anchor="end">{y}</text>')
    for x, label in [(each, f"{each:g}") for each in ticks] or list(_list_thousands(low, high)):
        parts.append(f'<text x="{across(x):.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{label}</text>')
    counts = {"": 0, "5 4": 0, "1 4": 0}
    for number, (name, points) in enumerate(shown.items()):
        dashes = "5 4" if dashed(name) else "1 4" if dotted(name) else ""
        colour = _COLOURS[counts[dashes] % len(_COLOURS)]
        counts[dashes] += 1
        style = f'fill="none" stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        path = " ".join(f"{across(at):.1f},{down(value):.1f}" for at, value in sorted(points))
        key = _TOP + 12 + 20 * number
        parts.append(f'<polyline {style} points="{path}"/>')
        parts.append(f'<line {style} x1="{_WIDTH - _RIGHT + 14}" x2="{_WIDTH - _RIGHT + 44}" y1="{key}" y2="{key}"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 52}" y="{key + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _list_thousands(low: float, high: float) -> Iterator[tuple[float, str]]:
    """Yield the powers of two in thousands from `low` to `high`, with their labels."""
    x = 2 ** math.ceil(math.log2(low / 1000)) * 1000
    while x <= high:
        yield x, f"{x // 1000}K"
        x *= 2
