"""Reasoning as clients keep it for us, who send it back unread: its text in a form that names its server.

Nothing in it is secret, because the client was shown the text. Who forges one says only what they could have said as a
text.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Final

_SEAL: Final = "reasond1."


def seal(text: str) -> str:
    """Return a reasoning in its sealed form."""
    return _SEAL + base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def unseal(sealed: object) -> str:
    """Return the reasoning in a sealed form; empty for one of another server."""
    with suppress(ValueError):
        if isinstance(sealed, str) and sealed.startswith(_SEAL):
            return base64.b64decode(sealed.removeprefix(_SEAL), altchars=b"-_", validate=True).decode()
    return ""
