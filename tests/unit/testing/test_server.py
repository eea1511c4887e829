import pytest

from reasond import AsyncClient, Client
from reasond_server.errors.base import SettingsError
from reasond_server.testing import ScriptedModel, running_server, running_server_in_thread


async def test_a_program_is_tested_against_the_real_server_with_a_scripted_model() -> None:
    model = ScriptedModel(["<answer>42</answer>"])
    async with running_server(model=model) as server, AsyncClient(server.grpc, token=server.token) as client:
        reasoning = await client.reason("What is six times seven?")
    assert reasoning.answer == "42"
    model.assert_consumed()


def test_a_test_without_an_event_loop_gets_a_server_in_a_thread() -> None:
    model = ScriptedModel(["<answer>42</answer>"])
    with running_server_in_thread(model=model) as server, Client(server.grpc, token=server.token) as client:
        assert client.reason("What is six times seven?").answer == "42"


def test_settings_that_do_not_work_are_raised_in_the_test() -> None:
    environ = {"REASOND__SERVER__GRPC_ADDRES": "127.0.0.1:0"}
    with pytest.raises(SettingsError, match="grpc_address"), running_server_in_thread(environ=environ):
        pytest.fail("must not start")


def test_an_error_in_the_test_stops_the_server() -> None:
    def failing() -> None:
        with running_server_in_thread():
            raise LookupError

    with pytest.raises(LookupError):
        failing()


async def test_strategies_given_by_the_test_take_the_place_of_the_installed_ones() -> None:
    async with running_server(strategies=[]) as server, AsyncClient(server.grpc, token=server.token) as client:
        assert not (await client.list_strategies()).strategies
