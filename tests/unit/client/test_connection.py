from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from reasond import AsyncClient, Client, TlsOptions
from reasond.connection import Connection, arguments_from, authorization, is_local, service_config
from reasond.v1 import (
    agent_service_pb2,
    execution_service_pb2,
    reasoning_service_pb2,
    repair_service_pb2,
    turn_service_pb2,
)
from reasond_server.config import ServerSettings


def connection(**changes: Any) -> Connection:
    values: dict[str, Any] = {
        "target": "127.0.0.1:50051",
        "tls": False,
        "timeout_s": 120.0,
        "options": {},
        "has_token": False,
        "allow_plaintext_token": False,
    }
    return Connection(**(values | changes))


@pytest.mark.parametrize(
    "target",
    [
        *("localhost:1", "127.0.0.1:50051", "127.8.9.1:1", "[::1]:1", "::1", "unix:/run/r.sock", "unix-abstract:r"),
        *("dns:///localhost:1", "ipv4:127.0.0.1:1,127.0.0.2:1", "ipv6:[::1]:1", "LOCALHOST"),
    ],
)
def test_a_target_on_this_machine_is_local(target: str) -> None:
    assert is_local(target)


@pytest.mark.parametrize(
    "target",
    [
        *("reasond.example:443", "10.0.0.1:50051", "dns:///localhost.example:1", "ipv4:127.0.0.1:1,10.0.0.1:1"),
        *("[2001:db8::1]:1", "0.0.0.0:1", "xds:///localhost", "dns://127.0.0.1/reasond.example:1", "127.0.0.1.evil:1"),
    ],
)
def test_a_target_elsewhere_is_not_local(target: str) -> None:
    assert not is_local(target)


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_a_token_does_not_leave_the_machine_in_plain_text(client: type[AsyncClient | Client]) -> None:
    with pytest.raises(ValueError, match=r"plain text to 'reasond\.example:443': pass tls=True"):
        client("reasond.example:443", token="secret")


@pytest.mark.parametrize("target", ["http://127.0.0.1:50051", "HTTPS://reasond.example"])
def test_a_url_is_no_target(target: str) -> None:
    with pytest.raises(ValueError, match="a host and a port"):
        connection(target=target)


def test_plain_text_can_be_allowed_where_a_mesh_encrypts() -> None:
    assert connection(target="reasond.svc:1", has_token=True, allow_plaintext_token=True).credentials() is None


@pytest.mark.parametrize("timeout_s", [0, -1.0, math.nan])
def test_a_deadline_must_be_above_0(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s must be above 0"):
        connection(timeout_s=timeout_s)
    with pytest.raises(ValueError, match="timeout_s must be above 0"):
        connection().deadline_s(timeout_s)


def test_infinity_is_no_deadline_and_none_is_the_default() -> None:
    assert connection().deadline_s(math.inf) is None
    assert connection().deadline_s(None) == 120.0
    assert connection().deadline_s(3.0) == 3.0


def test_an_empty_target_is_refused() -> None:
    with pytest.raises(ValueError, match="target must be an address"):
        connection(target=" ")


def config_for(target: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(dict(connection(target=target).channel_arguments())["grpc.service_config"])
    return config


@pytest.mark.parametrize("target", ["dns:///reasond.example:50051", "ipv4:10.0.0.1:50051,10.0.0.2:50051"])
def test_a_target_with_many_addresses_is_called_in_turn_where_its_servers_are_healthy(target: str) -> None:
    config = config_for(target)
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
    known = {service.full_name for service in reasoning_service_pb2.DESCRIPTOR.services_by_name.values()}
    assert config["healthCheckConfig"]["serviceName"] in known


def test_one_address_is_called_as_long_as_it_can_be_reached() -> None:
    assert set(config_for("127.0.0.1:50051")) == {"methodConfig", "retryThrottling"}


def test_the_calls_of_one_full_connection_do_not_use_up_the_retries() -> None:
    throttling = config_for("127.0.0.1:50051")["retryThrottling"]
    assert throttling["maxTokens"] / 2 > ServerSettings().max_concurrent_streams


def test_the_config_for_other_languages_is_ours() -> None:
    published = Path(__file__).resolve().parents[3] / "proto" / "reasond.service_config.json"
    assert json.loads(published.read_text("utf-8")) == service_config(), "run: make generate"


def test_a_proxy_of_the_environment_is_passed_by_for_local_targets_only() -> None:
    assert dict(connection().channel_arguments())["grpc.enable_http_proxy"] == 0
    assert "grpc.enable_http_proxy" not in dict(connection(target="reasond.example:1").channel_arguments())


def test_the_callers_channel_arguments_win() -> None:
    arguments = dict(connection(options={"grpc.keepalive_time_ms": 60_000}).channel_arguments())
    assert arguments["grpc.keepalive_time_ms"] == 60_000
    assert arguments["grpc.max_receive_message_length"] == 4 * 1024 * 1024


def test_what_is_retried_is_a_choice_about_every_rpc() -> None:
    config = json.loads(dict(connection().channel_arguments())["grpc.service_config"])
    retried = {(name["service"], name["method"]) for name in config["methodConfig"][0]["name"]}
    files = (agent_service_pb2, execution_service_pb2, reasoning_service_pb2, repair_service_pb2, turn_service_pb2)
    known = {
        (service.full_name, method.name)
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    unrepeatable = {"DeleteExecution", "RegisterAgent", "DeleteAgent", "DeleteTurn", "DeleteSession"}
    assert {method for _, method in known - retried} == unrepeatable
    assert retried < known
    assert config["methodConfig"][0]["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]


def test_a_token_becomes_a_bearer_header() -> None:
    assert authorization(" abc.def\n") == (("authorization", "Bearer abc.def"),)
    assert authorization(" ") == ()


@pytest.mark.parametrize("token", ["Bearer abc", "a\nb", "schlüssel", "a\0"])
def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        authorization(token)
    assert token not in str(caught.value)


def test_a_client_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="both certificate_chain and private_key"):
        TlsOptions(certificate_chain=b"chain")


def test_a_private_key_is_not_shown() -> None:
    assert "secret" not in repr(TlsOptions(certificate_chain=b"chain", private_key=b"secret"))


def test_a_client_shows_its_target_and_not_its_token() -> None:
    assert repr(AsyncClient("127.0.0.1:1", token="secret")) == "AsyncClient('127.0.0.1:1')"
    with Client("127.0.0.1:1", token="secret") as client:
        assert repr(client) == "Client('127.0.0.1:1')"


def test_an_empty_environment_leaves_the_defaults() -> None:
    assert arguments_from({"REASOND_TARGET": "", "REASOND_TOKEN": " ", "REASOND_TLS": ""}) == {}


def test_the_environment_gives_target_token_deadline_and_tls(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"roots")
    environ = {
        "REASOND_TARGET": "dns:///reasond.example:443",
        "REASOND_TOKEN": "secret\n",
        "REASOND_CA_FILE": str(tmp_path / "ca.pem"),
        "REASOND_TIMEOUT_S": "30",
    }
    assert arguments_from(environ) == {
        "target": "dns:///reasond.example:443",
        "token": "secret",
        "tls": TlsOptions(root_certificates=b"roots"),
        "timeout_s": 30.0,
    }


@pytest.mark.parametrize("value", ["1", "TRUE", "on", "yes"])
def test_flags_of_the_environment_can_be_said_in_several_ways(value: str) -> None:
    environ = {"REASOND_TLS": value, "REASOND_ALLOW_PLAINTEXT_TOKEN": value}
    assert arguments_from(environ) == {"tls": True, "allow_plaintext_token": True}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"REASOND_TLS": "maybe"}, "REASOND_TLS must be one of"),
        ({"REASOND_TIMEOUT_S": "soon"}, "REASOND_TIMEOUT_S must be a number of seconds above 0, not 'soon'"),
        ({"REASOND_TIMEOUT_S": "-1"}, "REASOND_TIMEOUT_S must be a number of seconds above 0"),
        ({"REASOND_TLS": "off", "REASOND_CA_FILE": "ca.pem"}, "REASOND_CA_FILE is set but REASOND_TLS turns TLS off"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arguments_from(environ)


def test_a_missing_ca_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pem"):
        Client.from_env({"REASOND_CA_FILE": "/nowhere.pem"})


def test_from_env_reads_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASOND_TARGET", "127.0.0.1:7")
    assert repr(AsyncClient.from_env()) == "AsyncClient('127.0.0.1:7')"
    with Client.from_env() as client:
        assert repr(client) == "Client('127.0.0.1:7')"
