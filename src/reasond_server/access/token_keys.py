"""Keys that verify tokens, each bound to the one algorithm it may be used with (RFC 8725, section 3.1)."""

from __future__ import annotations

import secrets
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        ...


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
