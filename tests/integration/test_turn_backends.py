"""Modes of turns that name a backend: the server calls that model server, over a real socket."""

from __future__ import annotations

import reasond
from reasond_server.testing import ScriptedModel, running_server
from tests.faults.upstream import DONE, chunk, streaming, upstream, usage


async def test_a_mode_calls_the_model_server_of_its_backend_and_others_that_of_the_server() -> None:
    async with upstream(streaming(chunk("From the writer."), chunk(finish="stop"), usage(40, 5), DONE)) as writer:
        environ = {
            "REASOND__LLM__BACKENDS__WRITER__MODEL": "writer-7b",
            "REASOND__LLM__BACKENDS__WRITER__BASE_URL": writer.address,
            "REASOND__LLM__BACKENDS__WRITER__API_KEY_ENV": "",
            "REASOND__TURNS__MODES__WRITE__BACKEND": "writer",
        }
        async with (
            running_server(model=ScriptedModel(["From the server."]), environ=environ) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            written = await client.turn("Write", session="s1", mode="write")
            plain = await client.turn("Answer", session="s1", mode="default")
            events = [event async for event in client.turn_events("Write again", session="s1", mode="write")]

    assert (written.answer, plain.answer) == ("From the writer.", "From the server.")
    assert (written.usage.input_tokens, written.usage.output_tokens) == (40, 5)
    assert writer.calls == 2
    assert writer.conversations[0].json["model"] == "writer-7b"
    # The history has the turn that the other model answered.
    assert "From the server." in str(writer.conversations[1].json["messages"])
    assert [event.model_call.model for event in events if event.WhichOneof("event") == "model_call"] == ["writer-7b"]
