from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.openai.sse import ServerEvent, SseReader

LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"data:  c",
        b"event: e",
        b": comment",
        b"id: 1",
        b"",
        b"",
        b"x",
        b"data: f\n",
        b"\xef\xbb\xbfdata: d",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=30).map(lambda lines: b"".join(line + end for line, end in lines))


def read(*pieces: bytes, limit: int = 100) -> list[tuple[bytes, bytes]]:
    reader = SseReader(max_line_bytes=limit)
    return [(event.name, event.data) for piece in pieces for event in reader.feed(piece)]


def reference(stream: bytes) -> list[tuple[bytes, bytes]]:
    """Parse the whole stream at once with the algorithm of the specification."""
    lines = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    events: list[tuple[bytes, bytes]] = []
    name = b""
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                events.append((name, b"\n".join(data)))
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return events


@given(STREAMS, st.lists(st.integers(0, 300), max_size=20))
def test_any_cut_of_a_stream_gives_the_events_of_the_specification(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert read(*pieces) == reference(stream)
    assert read(*[stream[at : at + 1] for at in range(len(stream))]) == reference(stream)


def test_data_of_several_lines_is_joined() -> None:
    assert read(b"event: e\ndata: a\ndata: b\n\n") == [(b"e", b"a\nb")]


def test_an_event_that_never_ended_is_no_event() -> None:
    assert read(b"data: a\n") == []
    assert read(b"data: a\n\ndata: b") == [(b"", b"a")]


@pytest.mark.parametrize("step", [1, 7, 50, 1000])
def test_a_line_over_the_limit_is_refused_however_it_is_cut(step: int) -> None:
    stream = b"data: a\n\n" + b"x" * 101 + b"\n"
    reader = SseReader(max_line_bytes=100)
    events: list[ServerEvent] = []
    for at in range(0, len(stream), step):
        if reader.fault is None:
            events += reader.feed(stream[at : at + step])
    assert events == [ServerEvent(b"a")]
    with pytest.raises(ModelProtocolError, match="more than 100 bytes"):
        reader.feed(b"")


def test_a_line_of_just_the_limit_is_taken() -> None:
    assert read(b"data: " + b"x" * 94 + b"\r\n\r\n") == [(b"", b"x" * 94)]
