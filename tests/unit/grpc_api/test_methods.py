from __future__ import annotations

from reasond_server.access.permissions import OPERATIONS
from reasond_server.grpc_api.methods import CODES, METHODS
from reasond_server.grpc_api.server import SERVICES


def test_every_rpc_of_every_service_is_among_the_methods() -> None:
    own = [method for method in METHODS if method.startswith("reasond.")]
    assert {method.partition("/")[0] for method in own} == set(SERVICES)
    assert {method.partition("/")[2] for method in own} == set(OPERATIONS)
    assert len(METHODS) == len(set(METHODS))


def test_codes_have_the_names_that_grpc_gives_them() -> None:
    assert {"OK", "UNAVAILABLE", "UNAUTHENTICATED"} < set(CODES)
    assert len(CODES) == 17
