from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509 import CertificateBuilder, Name, NameAttribute, random_serial_number
from cryptography.x509.oid import NameOID

from reasond_server.access.token_keys import (
    JoinedKeys,
    StaticKeys,
    UnfitKeyError,
    VerifyingKey,
    parse_public_key,
    read_jwk,
)
from reasond_server.access.token_verifier import TokenRules, TokenVerifier
from reasond_server.errors.access import TokenInvalidError
from tests.unit.access.parts import MAIN, NOW, RULES, Clock, claims, sign

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - the test needs a weak key
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
PRIVATE: dict[str, Any] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), RSA),
    **{name: ec.generate_private_key(curve) for name, curve in CURVES.items()},
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def pem_of(private: Any) -> bytes:
    public = private.public_key()
    return bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def private_pem(private: Any) -> bytes:
    return bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def jwk_of(algorithm: str, **changes: object) -> dict[str, Any]:
    """Return the public key of `algorithm` as an issuer publishes it; a change to None removes the member."""
    kind = jwt.get_algorithm_by_name(algorithm)
    found = json.loads(kind.to_jwk(PRIVATE[algorithm].public_key()))
    whole = found | {"kid": "one", "alg": algorithm, "use": "sig"} | changes
    return {name: value for name, value in whole.items() if value is not None}


def verifier(*keys: VerifyingKey) -> TokenVerifier:
    return TokenVerifier(keys=StaticKeys(keys), rules=TokenRules(**RULES), now=Clock())


@pytest.mark.parametrize("algorithm", PRIVATE)
async def test_a_token_of_each_public_algorithm_verifies_by_pem_and_by_jwk(algorithm: str) -> None:
    token = jwt.encode(claims(), PRIVATE[algorithm], algorithm=algorithm, headers={"kid": "one"})
    by_pem = parse_public_key(key_id="one", algorithm=algorithm, pem=pem_of(PRIVATE[algorithm]))
    for key in (by_pem, read_jwk(jwk_of(algorithm))):
        assert key.algorithm == algorithm
        assert (await verifier(key).verify(token)).subject == "alice"


async def test_a_key_is_good_for_its_own_algorithm_alone() -> None:
    key = parse_public_key(key_id="one", algorithm="RS256", pem=pem_of(RSA))
    token = jwt.encode(claims(), RSA, algorithm="RS512", headers={"kid": "one"})
    with pytest.raises(TokenInvalidError, match="algorithm that is not accepted"):
        await verifier(key).verify(token)


async def test_a_public_key_is_never_taken_for_a_secret() -> None:
    pem = pem_of(RSA)
    key = parse_public_key(key_id="one", algorithm="RS256", pem=pem)
    head = {"kid": "one", "alg": "HS256", "typ": "JWT"}
    # The library refuses to sign with a public key, so the test signs with another secret.
    forged = jwt.api_jws.PyJWS().encode(json.dumps(claims()).encode(), b"x" * 32, algorithm="HS256", headers=head)
    with pytest.raises(TokenInvalidError, match="algorithm that is not accepted"):
        await verifier(key).verify(forged)


async def test_a_secret_and_a_public_key_serve_beside_each_other_each_for_its_own() -> None:
    public = parse_public_key(key_id="one", algorithm="ES256", pem=pem_of(PRIVATE["ES256"]))
    both = verifier(MAIN.verifying_key, public)
    assert (await both.verify(sign(claims()))).subject == "alice"
    assert (await both.verify(jwt.encode(claims(), PRIVATE["ES256"], algorithm="ES256"))).subject == "alice"


def test_a_certificate_serves_as_well_as_its_key() -> None:
    name = Name([NameAttribute(NameOID.COMMON_NAME, "issuer")])
    certificate = (
        CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(RSA.public_key())
        .serial_number(random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW.replace(year=2027))
        .sign(RSA, hashes.SHA256())
    )
    key = parse_public_key(key_id="one", algorithm="RS256", pem=certificate.public_bytes(serialization.Encoding.PEM))
    assert key.material.public_numbers() == RSA.public_key().public_numbers()


@pytest.mark.parametrize(
    ("algorithm", "pem", "reason"),
    [
        ("RS256", private_pem(RSA), "private key"),
        ("RS256", b"", "no PEM public key"),
        ("RS256", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "no PEM public key"),
        ("RS256", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no PEM public key"),
        ("RS256", pem_of(PRIVATE["ES256"]), "no RSA key"),
        ("ES256", pem_of(PRIVATE["ES384"]), "secp256r1"),
        ("ES384", pem_of(RSA), "secp384r1"),
        ("EdDSA", pem_of(RSA), "Edwards"),
        ("RS256", pem_of(WEAK), "1024 bits"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_in_our_words(algorithm: str, pem: bytes, reason: str) -> None:
    with pytest.raises(UnfitKeyError, match=reason):
        parse_public_key(key_id="one", algorithm=algorithm, pem=pem)


@pytest.mark.parametrize(
    ("jwk", "reason"),
    [
        ({}, "no kid"),
        (jwk_of("RS256", kid=7), "no kid"),
        ({"kty": "oct", "k": "c2VjcmV0", "kid": "one", "alg": "HS256"}, "no algorithm"),
        (jwk_of("RS256", alg="none"), "no algorithm"),
        (jwk_of("RS256", use="enc"), "not for signatures"),
        (jwk_of("RS256", key_ops=["sign"]), "not for signatures"),
        (jwk_of("RS256", key_ops=7), "not for signatures"),
        (jwk_of("RS256", n="!"), "malformed"),
        (jwk_of("RS256", n=None), "malformed"),
        (jwk_of("ES256", alg="RS256"), "malformed"),
        (jwk_of("ES256", crv=None, alg=None), "no algorithm"),
        ({"kty": "future", "kid": "one"}, "no algorithm"),
    ],
)
def test_a_member_of_a_key_set_that_does_not_fit_is_refused(jwk: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnfitKeyError, match=reason):
        read_jwk(jwk)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_key_that_names_no_algorithm_has_the_one_of_its_kind(algorithm: str) -> None:
    assert read_jwk(jwk_of(algorithm, alg=None)).algorithm == algorithm


def test_the_private_half_of_a_published_key_is_left_out() -> None:
    kind = jwt.get_algorithm_by_name("RS256")
    careless = json.loads(kind.to_jwk(RSA)) | {"kid": "one", "alg": "RS256"}
    careless.pop("key_ops", None)
    assert isinstance(read_jwk(careless).material, rsa.RSAPublicKey)


async def test_the_first_source_that_knows_a_key_answers_and_all_do_where_none_is_named() -> None:
    other = VerifyingKey(id="main", algorithm="HS256", material=b"z" * 32)
    joined = JoinedKeys([StaticKeys([MAIN.verifying_key]), StaticKeys([other])])
    assert await joined.find("main") == [MAIN.verifying_key]
    assert await joined.find(None) == [MAIN.verifying_key, other]
    assert await joined.find("unknown") == []


def test_the_material_of_a_key_does_not_show() -> None:
    assert "mmmm" not in repr(MAIN.verifying_key)
    assert "mmmm" not in repr(MAIN)
