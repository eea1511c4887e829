r"""LaTeX's commands for signs, and the text that a formula is without them: `-\frac{1}{2}` is `-1/2`.

Sources: huggingface/lighteval#162, UKGovernmentBEIS/inspect_ai#5259, scitix/sieval#26; the normalisation of
hendrycks/math, which reads `\frac12`, `\sqrt2` and `\dfrac` so.
"""

from __future__ import annotations

import re
from typing import Final

_SIGNS: Final = {
    "leq": "≤",
    "le": "≤",
    "leqslant": "≤",
    "geq": "≥",
    "ge": "≥",
    "geqslant": "≥",
    "lt": "<",
    "gt": ">",
    "neq": "≠",
    "ne": "≠",
    "approx": "≈",
    "pm": "±",
    "times": "*",
    "cdot": "*",
    "div": "/",
    "infty": "∞",
    "cup": "\u222a",
    "cap": "∩",
    "in": "∈",
    "emptyset": "∅",
    "varnothing": "∅",
    "circ": "°",
    "degree": "°",
    "ldots": "...",
    "dots": "...",
    "cdots": "...",
    "quad": " ",
    "qquad": " ",
    "to": "→",
    "rightarrow": "→",
    "therefore": "",
    "displaystyle": "",
    "left": "",
    "right": "",
    "bigl": "",
    "bigr": "",
    "limits": "",
    "pi": "π",
    "alpha": "\u03b1",
    "beta": "β",
    "gamma": "\u03b3",
    "theta": "θ",
    "lambda": "λ",
    "mu": "μ",
    "sigma": "\u03c3",
    "phi": "φ",
    "omega": "ω",
    **{name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "min", "max", "gcd")},
}
_SIGN: Final = re.compile(rf"\\({'|'.join(sorted(_SIGNS, key=len, reverse=True))})(?![a-zA-Z])[ ]?")
_DEGREES: Final = re.compile(r" ?\^ ?(?:\{ ?\\(?:circ|degree) ?\}|\\(?:circ|degree)(?![a-zA-Z]))")
_TEXT: Final = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mathbb|operatorname|mbox|underline|emph)"
    r" ?\{([^{}]*)\}"
)
_SPACE: Final = re.compile(r"\\[,;:! ]|~")
_ESCAPE: Final = re.compile(r"\\([%$#&_{}])")
_THOUSANDS: Final = re.compile(r"(?<=\d)\{,\}(?=\d{3})")
_FRACTION: Final = re.compile(r"\\[dtc]?frac ?(?:\{([^{}]{1,80})\}|(\d)) ?(?:\{([^{}]{1,80})\}|([0-9a-zA-Z]))")
_MIXED: Final = re.compile(r"(?<=\d) ?(?=\\[dtc]?frac ?\{?\d+)")
_ROOT: Final = re.compile(r"\\sqrt ?(?:\{([^{}]{1,80})\}|(\w))")
_POWER: Final = re.compile(r"([\^_]) ?\{ ?([^{}]{1,80}?) ?\}")
_SIMPLE: Final = re.compile(r"\d+(?:\.\d+)?|\w")
_INTEGER: Final = re.compile(r"\d+")


def read_latex(text: str) -> str:
    """Return `text` with signs in the place of commands; what is no known command stays as it is."""
    if "\\" not in text and "{" not in text and "~" not in text:
        return text
    text = _DEGREES.sub("°", _THOUSANDS.sub(",", text))
    text = _SIGN.sub(lambda found: _SIGNS[found[1]], _SPACE.sub(" ", text))
    text = _TEXT.sub(r"\1", text)
    text = _POWER.sub(lambda found: found[1] + _enclose(found[2]), text)
    text = _ROOT.sub(lambda found: "√" + _enclose(found[1] or found[2]), text)
    text = _FRACTION.sub(_write_fraction, _MIXED.sub(" ", text))
    return _ESCAPE.sub(r"\1", text)


def _enclose(part: str) -> str:
    """Return `part` in parentheses, unless it is one name or number."""
    part = part.strip()
    return part if _SIMPLE.fullmatch(part.lstrip("+-")) else f"({part})"


def _write_fraction(found: re.Match[str]) -> str:
    top, bottom = (found[1] or found[2]).strip(), (found[3] or found[4]).strip()
    before, behind = found.string[: found.start()].rstrip(" ("), found.string[found.end() :].lstrip()
    is_part = bool(behind) and (behind[0].isalnum() or behind[0] in "\\(^")
    if _INTEGER.fullmatch(top) and _INTEGER.fullmatch(bottom) and not is_part:
        return (
            f"{top}/{bottom}" if not before or before[-1] in "-+=,$ " or before[-1].isdigit() else f"({top}/{bottom})"
        )
    whole = f"{_enclose(top)}/{_enclose(bottom)}"
    return f"({whole})" if is_part else whole
