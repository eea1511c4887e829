"""Keys that verify tokens, each bound to the one algorithm it may be used with (RFC 8725, section 3.1).

The keys of an issuer are fetched from the address of its JSON Web Key Set in a separate task: PyJWT's own client blocks
a thread for up to 30 s under one lock, so that one slow issuer stalls every call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.access import IssuerUnavailableError
from reasond_server.types.values import value

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

MAX_KEYS: Final = 50
MAX_DOCUMENT_BYTES: Final = 64 * 1024
_TIMEOUT_S: Final = 10.0
_OK: Final = 200
_REFRESH_SHARE: Final = 0.8
_log = logging.getLogger("reasond.access")


class JwksFetchError(Exception):
    """The key set could not be fetched or read; the text says why without quoting a foreign text."""


class JwksFetcher(Protocol):
    """Fetches the document of a key set."""

    async def fetch(self) -> bytes:
        """Return the document.

        Raises:
            JwksFetchError: the document cannot be fetched.
        """

    async def aclose(self) -> None:
        """Close connections."""


class HttpJwksFetcher:
    """Fetches `url`, bounded in time and bytes; redirects are refused, because the operator trusts only this address.

    `tls` replaces the system's trusted certificates for an issuer whose certificate has another root.
    """

    def __init__(self, *, url: str, tls: ssl.SSLContext | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        self._url = url
        self._tls = tls
        self._timeout_s = timeout_s

    async def fetch(self) -> bytes:
        """See JwksFetcher."""
        import aiohttp  # noqa: PLC0415 - a server without a key set starts without it

        from reasond_server.base.http_responses import BoundedResponse  # noqa: PLC0415 - as above

        try:
            async with (
                asyncio.timeout(self._timeout_s),
                aiohttp.ClientSession(auto_decompress=False, response_class=BoundedResponse) as session,
                session.get(
                    self._url,
                    allow_redirects=False,
                    ssl=True if self._tls is None else self._tls,
                    headers={"accept": "application/json", "accept-encoding": "identity"},
                ) as answer,
            ):
                if answer.status != _OK:
                    raise JwksFetchError(f"the issuer answered with status {answer.status}")
                document = b""
                while chunk := await answer.content.read(MAX_DOCUMENT_BYTES + 1 - len(document)):
                    document += chunk
        except TimeoutError:
            raise JwksFetchError(f"the issuer did not answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise JwksFetchError(f"the issuer cannot be reached ({type(error).__name__})") from error
        if len(document) > MAX_DOCUMENT_BYTES:
            raise JwksFetchError(f"it is longer than {MAX_DOCUMENT_BYTES} bytes")
        return document

    async def aclose(self) -> None:
        """Do nothing: each request has its own connection."""


@value
class JwksTimes:
    """Seconds for which a key set is fresh, or is used while the issuer is down, and seconds between two requests."""

    fresh_s: float = 300.0
    stale_s: float = 86_400.0
    retry_s: float = 30.0


class JwksKeys:
    """A cache over one key set. Only a caller whose key is unknown waits for the issuer.

    At most one request is open at a time. After the first call the set is fetched again in the background whenever 80 %
    of its lifetime has passed, even without calls, because a key that the issuer removed must not work after a long
    pause. An unknown key causes one more request, at most once per `retry_s`.
    """

    def __init__(self, *, fetcher: JwksFetcher, monotonic: Callable[[], float], times: JwksTimes | None = None) -> None:
        self._fetcher = fetcher
        self._monotonic = monotonic
        self._times = times or JwksTimes()
        self._keys: Mapping[str, VerifyingKey] = {}
        self._fetched_s: float | None = None
        self._tried_s: float | None = None
        self._has_failed = False
        self._fetching: asyncio.Task[None] | None = None
        self._next: asyncio.TimerHandle | None = None

    async def find(self, key_id: str | None) -> Sequence[VerifyingKey]:
        """Return the key with the id `key_id`, or nothing; a token without a key id matches no key.

        Raises:
            IssuerUnavailableError: the issuer's keys cannot be fetched, and the cached keys are too old or do not
                contain the key, which may be a new one.
        """
        if key_id is None:
            return ()
        age_s = self._measure_age_s()
        if age_s is not None and age_s <= self._times.stale_s and key_id in self._keys:
            if age_s >= _REFRESH_SHARE * self._times.fresh_s and self._may_try():
                self._start_fetch()
            return (self._keys[key_id],)
        if self._fetching is not None or self._may_try():
            await asyncio.shield(self._fetching or self._start_fetch())
        age_s = self._measure_age_s()
        is_usable = age_s is not None and age_s <= self._times.stale_s
        if is_usable and key_id in self._keys:
            return (self._keys[key_id],)
        if not is_usable or self._has_failed:
            raise IssuerUnavailableError(
                "The keys of the token's issuer cannot be fetched at present",
                remedy="Retry with the same token; the operator finds the cause in the server's log.",
                retry_after_s=self._measure_rest_s(),
            )
        return ()

    async def aclose(self) -> None:
        """Stop fetching, cancel an open request, and close connections."""
        if self._fetching is not None:
            await end_task(self._fetching)
        if self._next is not None:
            self._next.cancel()
        await self._fetcher.aclose()

    def _measure_age_s(self) -> float | None:
        """Return the age of the key set; None if there is none."""
        return None if self._fetched_s is None else self._monotonic() - self._fetched_s

    def _measure_rest_s(self) -> float:
        """Return the seconds until the issuer may be asked again."""
        rested_s = self._times.retry_s if self._tried_s is None else self._monotonic() - self._tried_s
        return max(0.0, self._times.retry_s - rested_s)

    def _may_try(self) -> bool:
        """Return whether a request may be sent now."""
        return self._fetching is None and not self._measure_rest_s()

    def _start_fetch(self) -> asyncio.Task[None]:
        """Fetch in a separate task, which continues if the caller is cancelled."""
        self._tried_s = self._monotonic()
        self._fetching = asyncio.create_task(self._refresh(), name="key set of the issuer")
        return self._fetching

    async def _refresh(self) -> None:
        """Replace the keys, or log a failure and keep the old ones; then schedule the next fetch."""
        pause_s = self._times.retry_s
        try:
            self._keys = parse_key_set(await self._fetcher.fetch())
            self._fetched_s, pause_s = self._monotonic(), _REFRESH_SHARE * self._times.fresh_s
            self._has_failed = False
        except JwksFetchError as error:
            self._has_failed = True
            _log.warning("the issuer's key set cannot be used: %s", error)
        finally:
            self._fetching = None
            if self._next is not None:
                self._next.cancel()
            self._next = asyncio.get_running_loop().call_later(pause_s, self._fetch_again)

    def _fetch_again(self) -> None:
        if self._may_try():
            self._start_fetch()


def parse_key_set(document: bytes) -> Mapping[str, VerifyingKey]:
    """Return the keys of a key set by id; unfit keys are omitted and logged.

    Raises:
        JwksFetchError: `document` is not a key set, or has too many keys.
    """
    try:
        found: Any = json.loads(document)
    except (ValueError, RecursionError):
        raise JwksFetchError("it is no JSON") from None
    members = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(members, list):
        raise JwksFetchError("it has no list of keys")
    if len(members) > MAX_KEYS:
        raise JwksFetchError(f"it has {len(members)} keys, more than {MAX_KEYS}")
    keys: dict[str, VerifyingKey] = {}
    for place, member in enumerate(members):
        try:
            key = read_jwk(member if isinstance(member, dict) else {})
        except UnfitKeyError as error:
            _log.info("key %d of the issuer's key set is left out: it %s", place, error)
        else:
            keys[key.id] = key
    return keys


MIN_RSA_BITS: Final = 2048

PUBLIC_ALGORITHMS: Final[tuple[str, ...]] = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}


class UnfitKeyError(ValueError):
    """A key cannot be used; the text says why and contains no part of the key."""


@value
class VerifyingKey:
    """A key and the only algorithm it may be used with; `repr` does not show the key."""

    id: str
    algorithm: str
    material: Any = field(repr=False)


@value
class SigningKey:
    """A secret that signs and verifies; `repr` does not show it."""

    id: str
    secret: bytes = field(repr=False)
    algorithm: Literal["HS256"] = "HS256"

    @property
    def verifying_key(self) -> VerifyingKey:
        """This key as a `VerifyingKey`."""
        return VerifyingKey(id=self.id, algorithm=self.algorithm, material=self.secret)


class KeySource(Protocol):
    """A source of keys that may have signed a token."""

    async def find(self, key_id: str | None) -> Sequence[VerifyingKey]:
        """Return the key with the id `key_id`, nothing if it is unknown, or all keys if `key_id` is None.

        Raises:
            TokenInvalidError: the keys are not available at present.
        """


class StaticKeys:
    """The keys of the configuration."""

    def __init__(self, keys: Sequence[VerifyingKey]) -> None:
        self._keys = tuple(keys)

    async def find(self, key_id: str | None) -> Sequence[VerifyingKey]:
        """See KeySource."""
        return self._keys if key_id is None else [key for key in self._keys if key.id == key_id]


class JoinedKeys:
    """Several sources, which are searched in order until one has the key."""

    def __init__(self, sources: Sequence[KeySource]) -> None:
        self._sources = tuple(sources)

    async def find(self, key_id: str | None) -> Sequence[VerifyingKey]:
        """See KeySource; a token without a key id may be signed by any key of the sources."""
        found: list[VerifyingKey] = []
        for source in self._sources:
            found += await source.find(key_id)
            if found and key_id is not None:
                break
        return found


def create_ephemeral_key() -> SigningKey:
    """Return a new key that lives as long as the process (`--dev`)."""
    return SigningKey(id="ephemeral", secret=secrets.token_bytes(32))


def parse_public_key(*, key_id: str, algorithm: str, pem: bytes) -> VerifyingKey:
    """Return the key of `pem`, a public key or certificate, for `algorithm`.

    Raises:
        UnfitKeyError: `pem` is a private key, not a key, too weak, or not of the kind that `algorithm` needs.
    """
    if b"PRIVATE KEY" in pem:
        raise UnfitKeyError("holds a private key; a server that verifies needs the public one alone")
    try:
        if b"BEGIN CERTIFICATE" in pem:
            material: Any = load_pem_x509_certificate(pem).public_key()
        else:
            material = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise UnfitKeyError("holds no PEM public key or certificate that can be read") from None
    require_fit(material, algorithm)
    return VerifyingKey(id=key_id, algorithm=algorithm, material=material)


def read_jwk(jwk: dict[str, Any]) -> VerifyingKey:
    """Return the key of one member of a JSON Web Key Set (RFC 7517).

    Raises:
        UnfitKeyError: the key has no id or algorithm, is symmetric, not for signatures, too weak or malformed.
    """
    key_id, algorithm = jwk.get("kid"), jwk.get("alg") or _infer_algorithm(jwk)
    if not isinstance(key_id, str) or not key_id:
        raise UnfitKeyError("has no kid")
    uses = jwk.get("key_ops") or ["verify"]
    if jwk.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        raise UnfitKeyError("is not for signatures")
    if algorithm not in PUBLIC_ALGORITHMS:
        raise UnfitKeyError(f"has no algorithm among {', '.join(PUBLIC_ALGORITHMS)}")
    public = {name: value for name, value in jwk.items() if name in {"kty", "n", "e", "crv", "x", "y"}}
    try:
        material = jwt.PyJWK(public, algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError):
        raise UnfitKeyError("is malformed") from None
    require_fit(material, algorithm)
    return VerifyingKey(id=key_id, algorithm=algorithm, material=material)


def require_fit(material: object, algorithm: str) -> None:
    """Require a key that fits `algorithm`.

    Raises:
        UnfitKeyError: the key is not of the kind that `algorithm` needs, or too weak for it.
    """
    if algorithm[:2] in {"RS", "PS"}:
        if not isinstance(material, rsa.RSAPublicKey):
            raise UnfitKeyError(f"is no RSA key, which {algorithm} needs")
        if material.key_size < MIN_RSA_BITS:
            raise UnfitKeyError(f"has {material.key_size} bits, fewer than {MIN_RSA_BITS}")
    elif algorithm in _CURVES:
        if not isinstance(material, ec.EllipticCurvePublicKey) or material.curve.name != _CURVES[algorithm]:
            raise UnfitKeyError(f"is no key on the curve {_CURVES[algorithm]}, which {algorithm} needs")
    elif not isinstance(material, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        raise UnfitKeyError(f"is no Edwards-curve key, which {algorithm} needs")


def _infer_algorithm(jwk: dict[str, Any]) -> str:
    """Return the algorithm for a key without `alg`: the only one for its kind, or the usual one for RSA."""
    if jwk.get("kty") == "OKP":
        return "EdDSA"
    by_curve = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
    if jwk.get("kty") == "EC":
        return by_curve.get(str(jwk.get("crv")), "")
    # Most issuers that omit `alg` sign with RS256, which every OpenID provider must offer.
    return "RS256" if jwk.get("kty") == "RSA" else ""
