"""How many values a JSON text holds, counted before anything is built from it.

Built first, eight MiB of empty arrays keep the event loop busy for a second, and nested ones for three; counted,
a text is refused as soon as it shows more values than are allowed.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

# Up to the next mark of a further value: a comma, or the beginning of what is not empty. Strings are passed over,
# whole or broken off. Possessive, and with the end as a mark: no byte of a hostile text is looked at twice.
_TO_MARK: Final = re.compile(
    rb'(?:[^",\[{]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{](?=\s*+[\]}]))*+(?:([,\[{])|\Z)', re.DOTALL
)


def holds_more_values(body: bytes | bytearray, most: int) -> bool:
    """Return whether the JSON text `body` holds more than `most` members and items, at all levels together.

    Members of one name count each. What is not JSON may be counted as anything; time is linear in `body`.
    """
    # Three passes in C, which are enough for all but texts with as many commas as a hostile one.
    if body.count(b",") + body.count(b"[") + body.count(b"{") <= most:
        return False
    found = next(islice(_TO_MARK.finditer(body), most, None), None)
    return found is not None and found[1] is not None
