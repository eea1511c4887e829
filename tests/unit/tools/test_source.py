from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors import SettingsError
from reasond_server.tools.calculator import Calculator
from reasond_server.tools.current_time import CurrentTime
from reasond_server.tools.source import TOOL_GROUP, Tools, discover_tools

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
    return EntryPoint(name=name, value=value, group=TOOL_GROUP)


def make_clock() -> CurrentTime:
    return CurrentTime()


def make_nothing() -> object:
    return object()


def make_trouble() -> object:
    raise RuntimeError("secret")


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
    assert [tool.name for tool in discover_tools(["calculator", "current_time"])] == ["calculator", "current_time"]


def test_an_entry_may_give_a_tool_a_class_or_a_function() -> None:
    here = "tests.unit.tools.test_source"
    installed = [
        point("calculator", f"{here}:READY"),
        point("current_time", f"{here}:make_clock"),
    ]
    loaded = discover_tools(["calculator", "current_time"], installed=installed)
    assert type(loaded[0]) is Calculator
    assert type(loaded[1]) is CurrentTime


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("gone", "no_such_module:Tool", "Tool 'gone' .* could not be loaded: ModuleNotFoundError"),
        ("wrong", "tests.unit.tools.test_source:make_nothing", "gives no tool"),
        ("trouble", "tests.unit.tools.test_source:make_trouble", "could not be loaded: RuntimeError"),
        ("other", "reasond_server.tools.calculator:Calculator", "gives a tool named 'calculator'"),
    ],
)
def test_an_entry_that_gives_no_tool_of_its_name_is_refused(name: str, value: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        discover_tools([name], installed=[point(name, value)])
    assert "secret" not in caught.value.full_message


def test_a_tool_that_is_not_installed_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"enabled names 'calculatr', .*did you mean 'calculator'"):
        discover_tools(["calculatr"])
