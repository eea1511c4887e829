from __future__ import annotations

from dataclasses import asdict, fields

from reasond_server.config import ServerSettings
from reasond_server.grpc_api.listeners import GrpcOptions, channel_arguments


def test_the_defaults_are_those_of_the_configuration() -> None:
    assert GrpcOptions() == GrpcOptions.of(ServerSettings())


def test_every_option_is_a_key_of_the_configuration() -> None:
    assert set(asdict(GrpcOptions())) <= set(ServerSettings.model_fields)
    assert {field.name for field in fields(GrpcOptions)} == set(asdict(GrpcOptions()))


def test_the_arguments_carry_the_names_that_grpc_reads() -> None:
    assert dict(channel_arguments(GrpcOptions())) == {
        "grpc.so_reuseport": 0,
        "grpc.max_receive_message_length": 4_194_304,
        "grpc.max_send_message_length": 4_194_304,
        "grpc.max_metadata_size": 8192,
        "grpc.absolute_max_metadata_size": 8192,
        "grpc.max_concurrent_streams": 256,
        "grpc.http2.max_deallocating_streams": 1024,
        "grpc.max_allowed_incoming_connections": 1000,
        "grpc.server.max_pending_requests": 20_000,
        "grpc.server.max_pending_requests_hard_limit": 20_000,
        "grpc.http2.settings_timeout": 3_000,
        "grpc.server_handshake_timeout_ms": 10_000,
        "grpc.keepalive_time_ms": 60_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.http2.ping_timeout_ms": 20_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": 10_000,
        "grpc.max_connection_age_ms": 1_800_000,
        "grpc.max_connection_age_grace_ms": 600_000,
    }
