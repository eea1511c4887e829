import asyncio

from reasond_server.executions.mailbox import Mailbox
from reasond_server.types import TextDelta


def delta(text: str, index: int = 0) -> TextDelta:
    return TextDelta(iteration_index=index, text=text)


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
    mailbox.log_grew()
    mailbox.wrote(delta("a"))
    mailbox.wrote(delta("b"))
    mailbox.wrote(delta("c", 1))
    mailbox.log_grew()
    mailbox.log_grew()
    assert await everything(mailbox) == [None, delta("ab"), delta("c", 1), None]


async def test_deltas_are_left_out_where_nobody_wants_them() -> None:
    mailbox = Mailbox(wants_deltas=False)
    mailbox.wrote(delta("a"))
    assert await everything(mailbox) == [None]


async def test_text_over_the_bound_is_left_out_until_there_is_room() -> None:
    mailbox = Mailbox(wants_deltas=True)
    mailbox.wrote(delta("x" * 65_536))
    mailbox.wrote(delta("y"))
    assert await everything(mailbox) == [None, delta("x" * 65_536)]
    mailbox.wrote(delta("z"))
    assert await everything(mailbox) == [delta("z")]


async def test_the_number_of_items_is_bounded() -> None:
    mailbox = Mailbox(wants_deltas=True)
    for index in range(1000):
        mailbox.wrote(delta("a", index))
        mailbox.log_grew()
    assert len(await everything(mailbox)) <= 257


async def test_a_waiting_reader_is_woken() -> None:
    mailbox = Mailbox(wants_deltas=True)
    await mailbox.take(timeout_s=1)
    reader = asyncio.create_task(mailbox.take(timeout_s=30))
    await asyncio.sleep(0)
    mailbox.wrote(delta("a"))
    assert await reader == delta("a")
