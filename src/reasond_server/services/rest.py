"""REST: the RPCs of all services at the addresses of their annotations, with their permissions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.grpc_api.transcoding import REST, TranscodedRpc, TranscodedRpcs, describe_status
from reasond_server.http_api.http_calls import Dialect, describe_failure
from reasond_server.http_api.rest_endpoint import REST_ROOT, RestEndpoint, Route
from reasond_server.protocols.wire_errors import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from reasond_server.errors.base import ReasondError
    from reasond_server.http_api.http_app import Interface
    from reasond_server.services.declaration import Service

_STATUSES: Final = {**STATUSES, "CANCELLED": 499, "UNIMPLEMENTED": 501}


def build_rest_interface(services: Iterable[Service]) -> Interface:
    """Return the addresses of the RPCs of `services`."""
    routes = [
        Route(
            verb=binding.verb,
            template=binding.template,
            takes_body=binding.takes_body,
            is_stream=rpc.is_stream,
            name=path[1:],
            operation=service.declaration.operations[path],
            call=rpc.call,
        )
        for service in services
        for path, rpc in _transcode(service).items()
        for binding in rpc.bindings
        if binding.template.startswith(REST_ROOT)
    ]
    hint = "Send 'Authorization: Bearer <token>'"
    return partial(RestEndpoint, routes, Dialect(transport=REST, describe=_describe, missing_hint=hint))


def _transcode(service: Service) -> Mapping[str, TranscodedRpc]:
    rpcs = TranscodedRpcs()
    service.register(rpcs)  # type: ignore[arg-type]  # it takes what it is told
    return rpcs.found


def _describe(error: ReasondError, call_id: str, _partial: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the status of `error` as Envoy's transcoder answers it: {status, headers, body, frame}."""
    status = _STATUSES.get(error.declaration.grpc_status, 500)
    return describe_failure(error, status, to_json(describe_status(error, call_id)))
