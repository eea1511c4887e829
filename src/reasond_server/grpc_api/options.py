"""What the operator decides about the gRPC server, as plain values, and the channel arguments that follow."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEBI: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """The part of `[server]` that gRPC needs, under the same names: sizes in bytes, times in seconds."""

    grpc_address: str = "127.0.0.1:50051"
    grpc_unix_socket: str = ""
    admin_address: str = ""
    tls: str = "off"
    tls_certificate: str = ""
    tls_private_key: str = ""
    tls_client_ca: str = ""
    reflection: bool = True
    so_reuseport: bool = False
    max_receive_bytes: int = 4 * _MEBI
    max_send_bytes: int = 4 * _MEBI
    max_metadata_bytes: int = 8192
    max_concurrent_streams: int = 256
    max_grpc_connections: int = 1000
    max_pending_calls: int = 20_000
    keepalive_time_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    min_ping_interval_s: float = 10.0
    max_connection_age_s: float = 1800.0
    max_connection_age_grace_s: float = 600.0

    @classmethod
    def of(cls, settings: object) -> GrpcOptions:
        """Return the options that `settings`, such as config.ServerSettings, holds under the same names."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})


def channel_arguments(options: GrpcOptions) -> Sequence[tuple[str, int]]:
    """Return the arguments for grpc.

    The number of RPCs is not bounded here: that would refuse health checks too, and get a busy server
    restarted. The name of the ping interval is the one that grpc reads, not the one its C macro suggests.
    """
    return (
        ("grpc.so_reuseport", int(options.so_reuseport)),
        ("grpc.max_receive_message_length", options.max_receive_bytes),
        ("grpc.max_send_message_length", options.max_send_bytes),
        ("grpc.max_metadata_size", options.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", options.max_metadata_bytes),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        ("grpc.max_allowed_incoming_connections", options.max_grpc_connections),
        # By itself grpc ends calls from the thousandth on that waits, and in a flood those are not the flood's alone.
        ("grpc.server.max_pending_requests", options.max_pending_calls),
        ("grpc.server.max_pending_requests_hard_limit", options.max_pending_calls),
        ("grpc.keepalive_time_ms", _ms(options.keepalive_time_s)),
        ("grpc.keepalive_timeout_ms", _ms(options.keepalive_timeout_s)),
        # Idle connections are probed too, or a dead client would hold its place for ever.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(options.min_ping_interval_s)),
        ("grpc.max_connection_age_ms", _ms(options.max_connection_age_s)),
        ("grpc.max_connection_age_grace_ms", _ms(options.max_connection_age_grace_s)),
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
