from __future__ import annotations

from reasond_server.grpc_api.statuses import CODES


def test_codes_have_the_names_that_grpc_gives_them() -> None:
    assert {"OK", "UNAVAILABLE", "UNAUTHENTICATED"} < set(CODES)
    assert len(CODES) == 17
