from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from reasond_server.access.token_keys import JwksFetchError, JwksKeys, JwksTimes, parse_key_set
from reasond_server.errors.access import IssuerUnavailableError
from tests.unit.access.test_token_keys import jwk_of
from tests.unit.runs.conftest import in_virtual_time

ONE, TWO = jwk_of("ES256", kid="one"), jwk_of("ES256", kid="two")


def document(*keys: Any) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


class Issuer:
    """A fetcher with scripted answers that counts its calls."""

    def __init__(self, *answers: bytes | JwksFetchError) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_closed = False

    async def fetch(self) -> bytes:
        self.asked += 1
        await self.may_answer.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, JwksFetchError):
            raise answer
        return answer

    async def aclose(self) -> None:
        self.is_closed = True


class Monotonic:
    """A monotonic clock, in seconds, that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def cache(issuer: Issuer, clock: Monotonic) -> JwksKeys:
    return JwksKeys(fetcher=issuer, monotonic=clock, times=JwksTimes(fresh_s=300, stale_s=86_400, retry_s=30))


async def ids(keys: JwksKeys, key_id: str | None) -> list[str]:
    return [key.id for key in await keys.find(key_id)]


async def let_all_go_on() -> None:
    """Let all tasks run until each of them waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_hundred_first_callers_ask_the_issuer_once() -> None:
    issuer = Issuer(document(ONE))
    keys = cache(issuer, Monotonic())
    found = await asyncio.gather(*(ids(keys, "one") for _ in range(100)))
    assert found == [["one"]] * 100
    assert issuer.asked == 1


async def test_a_caller_that_gives_up_does_not_stop_the_request_of_the_others() -> None:
    issuer = Issuer(document(ONE))
    issuer.may_answer.clear()
    keys = cache(issuer, Monotonic())
    first, second = asyncio.create_task(ids(keys, "one")), asyncio.create_task(ids(keys, "one"))
    await let_all_go_on()
    first.cancel()
    await let_all_go_on()
    issuer.may_answer.set()
    assert await second == ["one"]
    assert issuer.asked == 1


async def test_who_has_a_known_key_does_not_wait_for_an_issuer_that_hangs() -> None:
    issuer, clock = Issuer(document(ONE)), Monotonic()
    keys = cache(issuer, clock)
    await keys.find("one")
    issuer.may_answer.clear()
    clock.now_s += 10_000
    async with asyncio.timeout(120):
        assert await ids(keys, "one") == ["one"]
    await let_all_go_on()
    assert issuer.asked == 2
    issuer.may_answer.set()
    await keys.aclose()
    assert issuer.is_closed


@in_virtual_time
async def test_a_key_that_was_taken_out_is_refused_though_nobody_has_called_for_hours() -> None:
    clock = asyncio.get_running_loop().time
    issuer = Issuer(document(ONE), document(TWO))
    keys = JwksKeys(fetcher=issuer, monotonic=clock)
    assert await ids(keys, "one") == ["one"]
    await asyncio.sleep(7200)
    assert await ids(keys, "one") == []
    assert issuer.asked == 1 + 7200 // 240
    await keys.aclose()
    await asyncio.sleep(7200)
    assert issuer.asked == 1 + 7200 // 240


@in_virtual_time
async def test_an_issuer_that_is_down_is_asked_every_half_minute_until_it_is_back() -> None:
    down = JwksFetchError("down")
    issuer = Issuer(document(ONE), down, down, document(TWO))
    keys = JwksKeys(fetcher=issuer, monotonic=asyncio.get_running_loop().time)
    assert await ids(keys, "one") == ["one"]
    await asyncio.sleep(240 + 30 + 1)
    assert (issuer.asked, await ids(keys, "one")) == (3, ["one"])
    await asyncio.sleep(30)
    assert (issuer.asked, await ids(keys, "two")) == (4, ["two"])
    await keys.aclose()


async def test_who_asks_at_the_time_of_the_next_round_makes_no_second_request() -> None:
    issuer = Issuer(document(ONE))
    keys = cache(issuer, Monotonic())
    await keys.find("one")
    keys._fetch_again()
    await let_all_go_on()
    assert issuer.asked == 1
    await keys.aclose()


async def test_keys_are_asked_for_again_in_the_background_when_most_of_their_time_is_over() -> None:
    issuer, clock = Issuer(document(ONE), document(TWO)), Monotonic()
    keys = cache(issuer, clock)
    await keys.find("one")
    clock.now_s += 239
    assert await ids(keys, "one") == ["one"]
    await let_all_go_on()
    assert issuer.asked == 1
    clock.now_s += 2
    assert await ids(keys, "one") == ["one"]
    await let_all_go_on()
    assert issuer.asked == 2
    assert await ids(keys, "one") == []
    assert await ids(keys, "two") == ["two"]


async def test_stale_keys_serve_for_a_day_while_the_issuer_is_down_and_not_longer() -> None:
    issuer, clock = Issuer(document(ONE), JwksFetchError("down")), Monotonic()
    keys = cache(issuer, clock)
    await keys.find("one")
    clock.now_s += 86_399
    assert await ids(keys, "one") == ["one"]
    await let_all_go_on()
    clock.now_s += 31
    with pytest.raises(IssuerUnavailableError, match="cannot be fetched at present"):
        await keys.find("one")


async def test_the_issuer_that_comes_back_is_heard() -> None:
    issuer, clock = Issuer(JwksFetchError("down"), document(ONE)), Monotonic()
    keys = cache(issuer, clock)
    with pytest.raises(IssuerUnavailableError):
        await keys.find("one")
    with pytest.raises(IssuerUnavailableError):
        await keys.find("one")
    assert issuer.asked == 1
    clock.now_s += 30
    assert await ids(keys, "one") == ["one"]


async def test_an_unknown_key_may_be_a_new_one_while_the_issuer_is_down() -> None:
    issuer, clock = Issuer(document(ONE), JwksFetchError("down"), document(ONE, TWO)), Monotonic()
    keys = cache(issuer, clock)
    await keys.find("one")
    assert await ids(keys, "two") == []
    clock.now_s += 30
    with pytest.raises(IssuerUnavailableError) as caught:
        await keys.find("two")
    assert caught.value.retry_after_s == 30
    assert await ids(keys, "one") == ["one"]
    clock.now_s += 30
    assert await ids(keys, "two") == ["two"]


async def test_unknown_keys_make_one_request_in_half_a_minute_however_many_they_are() -> None:
    issuer, clock = Issuer(document(ONE)), Monotonic()
    keys = cache(issuer, clock)
    await keys.find("one")
    clock.now_s += 30
    for number in range(50):
        assert await ids(keys, f"unknown-{number}") == []
    assert issuer.asked == 2
    clock.now_s += 30
    assert await ids(keys, "unknown") == []
    assert issuer.asked == 3


async def test_a_key_that_was_added_is_found_by_the_token_that_needs_it() -> None:
    issuer, clock = Issuer(document(ONE), document(ONE, TWO)), Monotonic()
    keys = cache(issuer, clock)
    await keys.find("one")
    clock.now_s += 30
    assert await ids(keys, "two") == ["two"]


async def test_a_token_that_names_no_key_asks_nobody() -> None:
    issuer = Issuer(document(ONE))
    assert await ids(cache(issuer, Monotonic()), None) == []
    assert issuer.asked == 0


async def test_a_bad_key_set_keeps_the_old_one_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    issuer, clock = Issuer(document(ONE), b"<html>"), Monotonic()
    keys = cache(issuer, clock)
    await keys.find("one")
    clock.now_s += 290
    with caplog.at_level(logging.WARNING, logger="reasond.access"):
        await keys.find("one")
        await let_all_go_on()
    assert "it is no JSON" in caplog.text
    assert await ids(keys, "one") == ["one"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no list of keys"),
        (b'{"keys": {}}', "no list of keys"),
        (document(*[ONE] * 51), "51 keys, more than 50"),
    ],
)
def test_what_is_no_key_set_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(JwksFetchError, match=reason):
        parse_key_set(text)


def test_unfit_members_are_left_out_and_the_others_kept() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"}
    assert list(parse_key_set(document(secret, "text", jwk_of("RS256", use="enc"), TWO))) == ["two"]


async def test_keys_that_nobody_has_asked_for_are_closed_without_a_request() -> None:
    issuer = Issuer()
    await cache(issuer, Monotonic()).aclose()
    assert (issuer.asked, issuer.is_closed) == (0, True)
