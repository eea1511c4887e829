"""Clients that stop reading: a real client process under SIGSTOP on 25 streams of a log of 15 MiB."""

import sys
from pathlib import Path

import pytest

from tests.faults.stalled_readers import MEMORY, measure, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 25


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
@pytest.mark.parametrize(("way", "is_file"), [("grpc", False), ("grpc", True), ("sse", True)])
def test_a_stalled_stream_costs_less_than_a_mebibyte_and_goes_on_where_it_was_cut(
    way: str, *, is_file: bool, tmp_path: Path
) -> None:
    with running(f"sqlite:///{tmp_path / 'reasond.db'}" if is_file else MEMORY) as server:
        found = measure(server, way, reads=1, streams=STREAMS)

    assert found.stalled_mib <= 1.0, found
    how = "cut" if way == "sse" else "RESOURCE_EXHAUSTED"
    assert found.ended == {f"{how}, then all": STREAMS}
