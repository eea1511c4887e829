import asyncio

from reasond_server.eventlog.mailbox import FlushTimer, Mailbox
from reasond_server.types import TextDelta


def delta(text: str, index: int = 0) -> TextDelta:
    return TextDelta(iteration_index=index, text=text)


def write(mailbox: Mailbox, text: str, index: int = 0) -> None:
    mailbox.add_text(index, text, after_sequence=1)


async def everything(mailbox: Mailbox) -> list[TextDelta | None]:
    items = []
    while True:
        try:
            items.append(await mailbox.take(timeout_s=0.001))
        except TimeoutError:
            return items


async def test_it_begins_with_a_look_at_the_log() -> None:
    assert await everything(Mailbox(wants_deltas=True)) == [None]


async def test_notices_collapse_and_deltas_of_a_step_are_joined() -> None:
    mailbox = Mailbox(wants_deltas=True)
    mailbox.notify_growth()
    write(mailbox, "a")
    write(mailbox, "b")
    write(mailbox, "c", 1)
    mailbox.notify_growth()
    mailbox.notify_growth()
    assert await everything(mailbox) == [None, delta("ab"), delta("c", 1), None]


async def test_deltas_are_left_out_where_nobody_wants_them() -> None:
    mailbox = Mailbox(wants_deltas=False)
    write(mailbox, "a")
    assert await everything(mailbox) == [None]


async def test_text_over_the_bound_is_left_out_until_there_is_room() -> None:
    mailbox = Mailbox(wants_deltas=True)
    write(mailbox, "x" * 65_536)
    write(mailbox, "y")
    assert await everything(mailbox) == [None, delta("x" * 65_536)]
    write(mailbox, "z")
    assert await everything(mailbox) == [delta("z")]


async def test_the_number_of_items_is_bounded() -> None:
    mailbox = Mailbox(wants_deltas=True)
    for index in range(1000):
        write(mailbox, "a", index)
        mailbox.notify_growth()
    assert len(await everything(mailbox)) <= 257


async def test_a_waiting_reader_is_woken() -> None:
    mailbox = Mailbox(wants_deltas=True)
    await mailbox.take(timeout_s=1)
    reader = asyncio.create_task(mailbox.take(timeout_s=30))
    await asyncio.sleep(0)
    write(mailbox, "a")
    assert await reader == delta("a")


NEVER_S = 3600


async def after_one_delta(*, interval_s: float) -> Mailbox:
    """Return a mailbox that holds text back, because it has just delivered its first delta."""
    mailbox = Mailbox(wants_deltas=True, flush_timer=FlushTimer(interval_s=interval_s))
    assert await mailbox.take(timeout_s=1) is None
    write(mailbox, "first")
    assert await mailbox.take(timeout_s=1) == delta("first")
    return mailbox


async def test_text_that_follows_soon_waits_for_more() -> None:
    mailbox = await after_one_delta(interval_s=NEVER_S)
    reader = asyncio.create_task(mailbox.take(timeout_s=30))
    for text in "abc":
        await asyncio.sleep(0)
        write(mailbox, text)
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.notify_growth()
    assert await reader == delta("abc")
    assert await mailbox.take(timeout_s=1) is None


async def test_a_logged_event_never_waits_for_the_interval() -> None:
    mailbox = await after_one_delta(interval_s=NEVER_S)
    reader = asyncio.create_task(mailbox.take(timeout_s=30))
    await asyncio.sleep(0)
    mailbox.notify_growth()
    assert await reader is None


async def test_text_is_given_out_when_the_moment_has_come() -> None:
    mailbox = await after_one_delta(interval_s=0.005)
    write(mailbox, "a")
    write(mailbox, "b")
    assert await mailbox.take(timeout_s=30) == delta("ab")


async def test_after_a_moment_without_text_the_next_is_given_out_at_once() -> None:
    mailbox = await after_one_delta(interval_s=NEVER_S)
    mailbox.flush()
    reader = asyncio.create_task(mailbox.take(timeout_s=30))
    await asyncio.sleep(0)
    assert not reader.done()
    write(mailbox, "a")
    assert await reader == delta("a")


async def test_much_text_does_not_wait() -> None:
    mailbox = await after_one_delta(interval_s=NEVER_S)
    reader = asyncio.create_task(mailbox.take(timeout_s=30))
    write(mailbox, "a" * 8191)
    await asyncio.sleep(0)
    assert not reader.done()
    write(mailbox, "b")
    assert await reader == delta("a" * 8191 + "b")


async def test_the_text_of_the_next_step_sets_that_of_the_last_free() -> None:
    mailbox = await after_one_delta(interval_s=NEVER_S)
    write(mailbox, "a")
    write(mailbox, "b", 1)
    assert await mailbox.take(timeout_s=1) == delta("a")
    mailbox.notify_growth()
    assert await everything(mailbox) == [delta("b", 1), None]


async def test_text_that_waits_is_worth_more_than_a_heartbeat() -> None:
    mailbox = await after_one_delta(interval_s=NEVER_S)
    write(mailbox, "a")
    assert await mailbox.take(timeout_s=0.001) == delta("a")
    assert await everything(mailbox) == []


async def test_a_mailbox_whose_follower_left_is_held_no_more() -> None:
    timer = FlushTimer(interval_s=NEVER_S)
    mailbox = Mailbox(wants_deltas=True, flush_timer=timer)
    await mailbox.take(timeout_s=1)
    write(mailbox, "a")
    await mailbox.take(timeout_s=1)
    assert timer.count == 1
    mailbox.close()
    mailbox.close()
    assert timer.count == 0
