"""The connection of a client: target, token, TLS, deadline, and the resulting channel arguments."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import grpc

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_TARGET: Final = "127.0.0.1:50051"
DEFAULT_TIMEOUT_S: Final = 120.0
_MEBIBYTE = 1024 * 1024
_MAX_MESSAGE_BYTES = 4 * _MEBIBYTE
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_SCHEME = re.compile(r"^(?:dns|ipv4|ipv6|passthrough):(?://[^/]*/)?")

# A hundred years; gRPC counts nanoseconds in 64 bits, and what does not fit is over at once.
_LONGEST_S: Final = 100 * 365 * 86_400
_RETRIED: Final[Mapping[str, tuple[str, ...]]] = {
    "reasond.v1.ReasoningService": ("Reason", "ReasonIterations", "ListStrategies"),
    "reasond.v1.ExecutionService": (
        *("GetExecution", "FollowExecution"),
        *("ListExecutions", "ListModelCalls", "CancelExecution"),
    ),
    "reasond.v1.TurnService": (
        *("ExecuteTurn", "RunTurn", "GetTurn", "ListTurns", "CancelTurn"),
        *("ReadToolResult", "GetSession", "ListSessions"),
    ),
    "reasond.v1.RepairService": (
        *("Repair", "RepairSteps", "GetRepair"),
        *("CreateSnapshot", "UploadBlobs", "ListEnvironments"),
    ),
    "reasond.v1.AgentService": ("GetAgentCard", "ListAgents"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Certificates in PEM. Without roots, the root certificates of gRPC are trusted.

    A client certificate needs both its chain and its key.
    """

    root_certificates: bytes | None = None
    certificate_chain: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.certificate_chain is None) != (self.private_key is None):
            raise ValueError("a client certificate needs both certificate_chain and private_key")


class ConnectionArguments(TypedDict, total=False):
    """The arguments of a client's constructor that can come from the environment."""

    target: str
    token: str | None
    tls: TlsOptions | bool
    timeout_s: float
    allow_plaintext_token: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The connection settings of both clients; raises ValueError if they are invalid."""

    target: str
    tls: TlsOptions | bool
    timeout_s: float
    options: Mapping[str, Any]
    has_token: bool
    allow_plaintext_token: bool

    def __post_init__(self) -> None:
        if not self.target.strip():
            raise ValueError("target must be an address such as '127.0.0.1:50051' or 'dns:///host:443'")
        if self.target.lower().startswith(("http://", "https://")):
            # gRPC would try to resolve the scheme as a host name.
            raise ValueError(f"target is a host and a port, such as '127.0.0.1:50051', not the URL {self.target!r}")
        checked_timeout(self.timeout_s)
        if self.has_token and self.tls is False and not (self.allow_plaintext_token or is_local(self.target)):
            message = (
                f"the token would cross the network in plain text to {self.target!r}: pass tls=True, "
                "or allow_plaintext_token=True where something else encrypts (a mesh, a tunnel)"
            )
            raise ValueError(message)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of the channel, None for plaintext."""
        if self.tls is False:
            return None
        tls = TlsOptions() if self.tls is True else self.tls
        return grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)

    def channel_arguments(self) -> list[tuple[str, Any]]:
        """Return the channel arguments; the caller's own `options` win."""
        arguments: dict[str, Any] = {
            "grpc.primary_user_agent": "reasond-python",
            "grpc.keepalive_time_ms": 30_000,
            "grpc.keepalive_timeout_ms": 10_000,
            # 0: no limit on pings while the server sends no data, which is when they are needed
            "grpc.http2.max_pings_without_data": 0,
            "grpc.initial_reconnect_backoff_ms": 250,
            # in a restart, connects before the last attempt of a call (`service_config`)
            "grpc.max_reconnect_backoff_ms": 1000,
            # the longest that one attempt to connect takes; 20 s by default, for which a dying server held calls up
            "grpc.min_reconnect_backoff_ms": 5000,
            "grpc.max_receive_message_length": _MAX_MESSAGE_BYTES,
            # a request larger than this buffer (default 256 KiB) is never retried
            "grpc.per_rpc_retry_buffer_size": _MAX_MESSAGE_BYTES,
            "grpc.service_config": json.dumps(service_config(is_balanced=has_many_addresses(self.target))),
        }
        if is_local(self.target):
            arguments["grpc.enable_http_proxy"] = 0
        return list({**arguments, **self.options}.items())

    def deadline_s(self, timeout_s: float | None) -> float | None:
        """Return the seconds until the deadline of a call, None for no deadline."""
        seconds = self.timeout_s if timeout_s is None else checked_timeout(timeout_s)
        return None if seconds > _LONGEST_S else seconds


def checked_timeout(timeout_s: float) -> float:
    """Return `timeout_s` if it is above 0 (infinity included); raise ValueError if not."""
    if not timeout_s > 0:
        message = f"timeout_s must be above 0, not {timeout_s!r}; math.inf sets no deadline"
        raise ValueError(message)
    return timeout_s


def service_config(*, is_balanced: bool = True) -> dict[str, Any]:
    """Return the service config (gRFC A6): retries of safe calls, and load balancing if `is_balanced`.

    Reason and ReasonIterations have a request id, so that a retry finds the execution of the first attempt; a
    stream is retried only before its first message. So have starts of turns and repairs, and a re-entry that is
    repeated finds what the first attempt began. Lists and look-ups change nothing, and CancelExecution, CancelTurn and
    uploads are idempotent.
    RegisterAgent and all that delete are not retried: after a lost response, a retry would fail with ETAG_MISMATCH or
    NOT_FOUND.

    The attempts of a call whose server dies are spread over some 5 to 8 s, so that it finds a server
    that is back within 3 s, and one whose server stays away fails soon.

    Retries stop when half of the tokens of the retry throttle are spent. The throttle has as many tokens as gRPC
    allows, so that the failed calls to a stopping server do not spend them. Balanced calls go in turn to the addresses
    whose health is SERVING.
    """
    policy = {
        "maxAttempts": 4,
        "initialBackoff": "0.3s",
        "maxBackoff": "5s",
        "backoffMultiplier": 4,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    names = [{"service": service, "method": method} for service, methods in _RETRIED.items() for method in methods]
    config: dict[str, Any] = {
        "methodConfig": [{"name": names, "retryPolicy": policy}],
        "retryThrottling": {"maxTokens": 1000, "tokenRatio": 1},
    }
    if is_balanced:
        config["loadBalancingConfig"] = [{"round_robin": {}}]
        config["healthCheckConfig"] = {"serviceName": "reasond.v1.ReasoningService"}
    return config


def has_many_addresses(target: str) -> bool:
    """Return whether `target` may mean several servers: a DNS name or a list of addresses."""
    return target.startswith("dns:") or "," in target


def is_local(target: str) -> bool:
    """Return whether `target` stays on this machine: a Unix socket, localhost or a loopback address."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    return all(_is_loopback(address) for address in _SCHEME.sub("", target).split(","))


def _is_loopback(address: str) -> bool:
    bracketed = re.match(r"^\[([^\]]*)\]", address)
    host = bracketed[1] if bracketed else address.partition(":")[0] if address.count(":") <= 1 else address
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def authorization(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata with `token`, empty for an empty token; errors never show the token."""
    token = token.strip()
    if not token:
        return ()
    if not all("!" <= letter <= "~" for letter in token):
        raise ValueError("the token must be printable ASCII without spaces; give it alone, without 'Bearer'")
    return (("authorization", f"Bearer {token}"),)


def arguments_from(environ: Mapping[str, str]) -> ConnectionArguments:
    """Read REASOND_TARGET, _TOKEN, _TLS, _CA_FILE, _TIMEOUT_S and _ALLOW_PLAINTEXT_TOKEN; raise ValueError.

    A CA file turns TLS on. For unset or empty variables, the constructor's defaults apply.
    """
    arguments: ConnectionArguments = {}
    if target := environ.get("REASOND_TARGET", "").strip():
        arguments["target"] = target
    if token := environ.get("REASOND_TOKEN", "").strip():
        arguments["token"] = token
    if timeout := environ.get("REASOND_TIMEOUT_S", "").strip():
        arguments["timeout_s"] = _seconds(timeout)
    if _is_on(environ, "REASOND_ALLOW_PLAINTEXT_TOKEN"):
        arguments["allow_plaintext_token"] = True
    ca_file = environ.get("REASOND_CA_FILE", "").strip()
    if ca_file and environ.get("REASOND_TLS", "").strip() and not _is_on(environ, "REASOND_TLS"):
        raise ValueError("REASOND_CA_FILE is set but REASOND_TLS turns TLS off; unset one of them")
    if ca_file:
        arguments["tls"] = TlsOptions(root_certificates=Path(ca_file).read_bytes())
    elif _is_on(environ, "REASOND_TLS"):
        arguments["tls"] = True
    return arguments


def _seconds(text: str) -> float:
    try:
        return checked_timeout(float(text))
    except ValueError:
        message = f"REASOND_TIMEOUT_S must be a number of seconds above 0, not {text[:40]!r}"
        raise ValueError(message) from None


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        message = f"{name} must be one of 1, true, yes, on, 0, false, no, off, not {value[:40]!r}"
        raise ValueError(message)
    return value in _TRUE
