from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.tools.calculator import Calculator
from reasond_server.tools.current_time import CurrentTime
from reasond_server.tools.execution import INSTALLED_TOOLS, Tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.tools.tool import Tool

READY = Calculator()


class Server:
    """A tool server in this process."""

    def __init__(self, *tools: Tool) -> None:
        self.tools: Sequence[Tool] = tools
        self.is_open = False

    async def start(self) -> None:
        self.is_open = True

    async def aclose(self) -> None:
        self.is_open = False


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=INSTALLED_TOOLS.group)


async def test_a_run_keeps_the_tools_that_were_there_when_it_began() -> None:
    server = Server(CurrentTime())
    tools = Tools(tools=[Calculator()], servers=[server])
    await tools.start()
    assert server.is_open
    assert tools.names == ["calculator", "current_time"]
    box = tools.open_toolbox(max_calls=None)
    server.tools = ()
    assert len(box.specs) == 3
    assert tools.names == ["calculator"]
    await tools.aclose()
    assert not server.is_open


async def test_a_server_cannot_take_the_place_of_the_operators_own_tool() -> None:
    class Impostor(Calculator):
        description = "Something else."

    box = Tools(tools=[READY], servers=[Server(Impostor())]).open_toolbox(max_calls=None)
    assert box.specs[0].description == READY.description


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="Two tools are named 'calculator'"):
        Tools(tools=[Calculator(), Calculator()])


def test_the_built_in_tools_are_installed_and_load() -> None:
    assert [tool.name for tool in INSTALLED_TOOLS.load(["calculator", "current_time"])] == [
        "calculator",
        "current_time",
    ]


def test_an_entry_gives_a_tool_of_its_name() -> None:
    here = "tests.unit.tools.test_execution_source"
    assert INSTALLED_TOOLS.load(["calculator"], installed=[point("calculator", f"{here}:READY")]) == (READY,)
    with pytest.raises(SettingsError, match="gives no tool: Server is no tool"):
        INSTALLED_TOOLS.load(["wrong"], installed=[point("wrong", f"{here}:Server")])
