"""What is sent for a letter, and to where."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from reasond_server.types.values import value

if TYPE_CHECKING:
    from datetime import datetime

    from reasond_server.tools.address_checks import AddressPolicy, Target
    from reasond_server.webhooks.outbox import Letter

Render = Callable[["Letter"], Awaitable[bytes | None]]
"""Returns the body of a letter in the form of a wire; None if there is nothing to tell."""


@value
class Parcel:
    """One request: the vetted `target`, the `policy` of its addresses, and what it is sent."""

    target: Target
    policy: AddressPolicy
    headers: Mapping[str, str]
    body: bytes


class Packer(Protocol):
    """Makes the parcels of the letters with its `name` as endpoint."""

    @property
    def name(self) -> str:
        """The endpoint."""
        ...

    @property
    def lanes(self) -> int:
        """How many send at the same time, so that a slow receiver among several holds up some of the others only."""
        ...

    async def pack(self, letter: Letter, render: Render, now: datetime) -> Parcel | None:
        """Return what is sent `now`; None for nothing.

        Raises:
            ReasondError: it cannot be made now.
        """
        ...
