from __future__ import annotations

import pytest
from pydantic import SecretStr

from reasond_server.assembly.limit_backend import build_limit_backend
from reasond_server.config import LimitsSettings
from reasond_server.errors.base import SettingsError
from reasond_server.errors.limits import RateLimitedError
from reasond_server.types import Principal

ALICE = Principal(subject="alice", tenant="acme", permissions=frozenset())
BOB = Principal(subject="bob", tenant="acme", permissions=frozenset())


async def test_without_limits_nothing_is_counted_and_nothing_opened() -> None:
    limit_backend = build_limit_backend(LimitsSettings())
    assert await limit_backend.callers.admit(ALICE, "react") is None
    assert limit_backend.callers.open_account("acme", "alice") is None
    assert limit_backend.redis is None
    await limit_backend.aclose()


async def test_a_limit_is_each_subjects_own_or_its_tenants() -> None:
    own = build_limit_backend(LimitsSettings(requests_per_hour=1)).callers
    await own.admit(ALICE, "react")
    await own.admit(BOB, "react")
    shared = build_limit_backend(LimitsSettings(requests_per_hour=1, by="tenant")).callers
    await shared.admit(ALICE, "react")
    with pytest.raises(RateLimitedError, match="1 requests in an hour"):
        await shared.admit(BOB, "react")


async def test_names_of_tenants_and_subjects_are_not_run_together() -> None:
    callers = build_limit_backend(LimitsSettings(requests_per_minute=1)).callers
    await callers.admit(Principal(subject="b", tenant="a", permissions=frozenset()), "react")
    await callers.admit(Principal(subject="", tenant="ab", permissions=frozenset()), "react")


async def test_an_address_that_is_none_of_redis_is_refused_without_repeating_it() -> None:
    settings = LimitsSettings(storage="redis", redis_url=SecretStr("http://:secret@host/"), tokens_per_day=1)
    with pytest.raises(SettingsError, match=r"limits\.redis_url is no address of Redis") as caught:
        build_limit_backend(settings)
    assert "secret" not in caught.value.full_message


@pytest.mark.parametrize(
    "url", ["redis://localhost/0", "redis://[::1]:6379", "rediss://u:p@host:1/2", "unix:///run/redis"]
)
async def test_every_address_that_redis_has_is_good_for_the_library_that_counts_requests(url: str) -> None:
    limit_backend = build_limit_backend(
        LimitsSettings(storage="redis", redis_url=SecretStr(url), requests_per_minute=1)
    )
    assert limit_backend.redis is not None
    await limit_backend.aclose()
