"""Callers identified by their client certificate: SPIFFE ids (X.509-SVID) become principals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from reasond_server.access.tokens import Revocations, derive_own_tenant
from reasond_server.types import Principal
from reasond_server.types.values import value

MAX_ID_BYTES: Final = 2048
# SPIFFE-ID, section 2: a trust domain in lower case, and a path of plain segments.
_SPIFFE = re.compile(r"spiffe://(?P<domain>[a-z0-9._-]{1,255})(?P<path>(?:/[A-Za-z0-9._-]+)+)")


@value
class PeerRule:
    """The permissions of peers whose path matches `path`, where `*` stands for any characters."""

    path: str
    permissions: frozenset[str]
    tenant: str = ""


class Peers:
    """Recognises the peers of one trust domain by the first rule that matches their path, unless they are revoked."""

    def __init__(
        self, *, trust_domain: str = "", rules: Sequence[PeerRule] = (), revocations: Revocations | None = None
    ) -> None:
        self._trust_domain = trust_domain
        self._rules = tuple(rules)
        self._revocations = revocations or Revocations()

    @property
    def has_rules(self) -> bool:
        """Whether any certificate identifies a caller."""
        return bool(self._trust_domain and self._rules)

    def recognise(self, uris: Sequence[str]) -> Principal | None:
        """Return the principal for the URIs of a verified certificate; None if no rule matches or it is revoked.

        The subject is the SPIFFE id; if the rule has no tenant, the subject gets its own.
        """
        # An SVID has exactly one URI; to choose among several would be a guess.
        if not self._trust_domain or len(uris) != 1 or len(uris[0]) > MAX_ID_BYTES:
            return None
        found = _SPIFFE.fullmatch(uris[0])
        if found is None or found["domain"] != self._trust_domain or {".", ".."} & set(found["path"].split("/")):
            return None
        if self._revocations.find_reason(subject=uris[0]):
            return None
        for rule in self._rules:
            if fnmatchcase(found["path"], rule.path):
                return Principal(
                    subject=uris[0], tenant=rule.tenant or derive_own_tenant(uris[0]), permissions=rule.permissions
                )
        return None
