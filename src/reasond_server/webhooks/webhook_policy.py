"""The operator's decisions about webhooks: the section [webhooks] of the configuration."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr

from reasond_server.types.policy_sections import ChosenName, PolicySection, freeze
from reasond_server.types.values import value

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
_DAY_S: Final = 86_400


class WebhookEvent(StrEnum):
    """What a receiver may be told."""

    ENDED = "execution.ended"
    WAITING = "turn.waiting"
    BUDGET = "budget.near_end"


class WebhookForm(StrEnum):
    """The form of messages: our own, or OpenAI's for responses in the background."""

    REASOND = "reasond"
    OPENAI = "openai"


def decode_secret(secret: SecretStr) -> bytes:
    """Return the key of a secret of Standard Webhooks.

    Raises:
        ValueError: it is none; the text describes the form and quotes nothing.
    """
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or len(key) not in _SECRET_BYTES:
        message = f'must be "{_PREFIX}" and the base64 of {_SECRET_BYTES[0]} to {_SECRET_BYTES[-1]} random bytes'
        raise ValueError(message)
    return key


def _require_secret(secret: SecretStr) -> SecretStr:
    decode_secret(secret)
    return secret


@value
class EndpointPolicy(PolicySection):
    """One receiver."""

    url: Annotated[str, Field(max_length=2000, description="Where messages are sent by POST; https.")]
    secrets: Annotated[
        tuple[Annotated[SecretStr, Field(strict=False), AfterValidator(_require_secret)], ...],
        Field(
            strict=False,
            min_length=1,
            max_length=4,
            description='Secrets, each "whsec_" and base64; a message is signed with all of them, so that one can be '
            "replaced: the new one before the old one, until the receiver knows it.",
        ),
    ]
    events: Annotated[
        tuple[Annotated[WebhookEvent, Field(strict=False)], ...],
        Field(strict=False, min_length=1, description="What the receiver is told."),
    ] = tuple(WebhookEvent)
    tenants: Annotated[
        tuple[str, ...], Field(strict=False, max_length=1000, description="Tenants that it is about; empty: all.")
    ] = ()
    form: Annotated[
        WebhookForm,
        Field(
            strict=False,
            description='Form of messages: "reasond", or "openai" for ended responses of /v1/responses in the '
            "background, as OpenAI's clients read them.",
        ),
    ] = WebhookForm.REASOND
    allow_private: Annotated[
        bool,
        Field(description="Whether url may be http, and its host have private or loopback addresses."),
    ] = False


EndpointTable = Annotated[Mapping[ChosenName, EndpointPolicy], AfterValidator(freeze)]


@value
class WebhookPolicy(PolicySection):
    """Who is told by HTTP what happens, and how often that is tried."""

    endpoints: Annotated[
        EndpointTable,
        Field(
            max_length=32,
            description="Receivers by name, each a table of url, secrets, events, tenants, form and allow_private; "
            "needs a store in a database.",
        ),
    ] = field(default_factory=lambda: freeze({}))
    timeout_s: Annotated[float, Field(ge=0.1, le=300, description="Seconds for one attempt.")] = 15.0
    retry_for_s: Annotated[
        float,
        Field(ge=0, le=30 * _DAY_S, description="Seconds during which a message that is not confirmed is sent again."),
    ] = 3.0 * _DAY_S
    budget_share: Annotated[
        float,
        Field(
            ge=0.01,
            le=0.9,
            description="Share of [limits] tokens_per_day at or below which a caller's budget is near its end.",
        ),
    ] = 0.1
