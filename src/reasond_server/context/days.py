"""Days and times in answers: one spelling where there is one reading."""

from __future__ import annotations

import re
from typing import Final

from reasond_server.dialects.units import MONTHS

_MONTHS: Final = 12
_DAYS: Final = 31
_NOON: Final = 12
_HOURS: Final = 24
_MINUTES: Final = 60
_CLOCK = re.compile(r"(\d{1,2})(?:[:.](\d{2}))?(?::(\d{2}))? ?(am|pm|a\.m\.?|p\.m\.?)?", re.IGNORECASE)
_MONTH = rf"({'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in MONTHS)}|sept)\.?"
_DATES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<month>{_MONTH}) (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year>\d{{4}})",
        rf"(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?(?: of)?[ -](?P<month>{_MONTH})[, -]{{1,2}}(?P<year>\d{{4}})",
        r"(?P<year>\d{4})[-/.年] ?(?P<month>\d{1,2})[-/.月] ?(?P<day>\d{1,2})日?",
        r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})",
        r"(?P<one>\d{1,2})[/-](?P<two>\d{1,2})[/-](?P<year>\d{4})",
    )
)


def spell_date(text: str) -> str:
    """Return a day as 2024-02-29; empty for any other text, and where the month could be the day."""
    found = next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None)
    if found is None:
        return ""
    parts = found.groupdict()
    if "one" in parts:
        one, two = int(parts["one"]), int(parts["two"])
        if (one > _MONTHS) == (two > _MONTHS) and one != two:
            return ""
        day, month = (one, two) if one > _MONTHS else (two, one)
    else:
        name = parts["month"]
        month = int(name) if name.isdigit() else 1 + [each[:3] for each in MONTHS].index(name[:3].casefold())
        day = int(parts["day"])
    is_day = 1 <= month <= _MONTHS and 1 <= day <= _DAYS
    return f"{parts['year']}-{month:02}-{day:02}" if is_day else ""


def spell_time(text: str) -> str:
    """Return a time of the day as 15:30; empty for any other text, and where it could be twelve hours later."""
    found = _CLOCK.fullmatch(text.replace(" o'clock", ""))
    if found is None or not (found[2] or found[4]):
        return ""
    hour, minute, half = int(found[1]), int(found[2] or 0), (found[4] or "").casefold().replace(".", "")
    is_clear = half or (":" in text and (hour > _NOON or found[1].startswith("0")))
    if not is_clear or minute >= _MINUTES or (half and not 1 <= hour <= _NOON) or hour >= _HOURS:
        return ""
    if half:
        hour = hour % _NOON + _NOON * (half == "pm")
    return f"{hour:02}:{minute:02}" + (f":{found[3]}" if found[3] else "")
