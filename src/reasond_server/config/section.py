"""The base of all sections of the configuration, and the forms of values that several have."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, StringConstraints

from reasond_server.base.addresses import split_address
from reasond_server.types.policy_sections import SECTION_RULES

EnvironmentName = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$", max_length=128)]


class Section(BaseModel):
    """Base of all sections: strict types, no unknown keys, immutable."""

    model_config = SECTION_RULES


def require_base_url(value: str) -> str:
    """Return `value` if it is an HTTP URL without credentials, or empty.

    Raises:
        ValueError: it is neither; the text describes the valid form.
    """
    if value and not re.fullmatch(r"https?://[^\s@/?#]+(/[^\s@?#]*)?", value):
        message = 'must start with "http://" or "https://" and hold no user, password, query or fragment'
        raise ValueError(message)
    return value


def _check_address(value: str) -> str:
    """Return `value` if it is an address or empty."""
    if value:
        split_address(value)
    return value


Address = Annotated[str, AfterValidator(_check_address)]
BaseUrl = Annotated[str, AfterValidator(require_base_url)]
