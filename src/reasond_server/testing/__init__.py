"""For tests of programs that use reasond: a real server in the test's process, and models that follow a script.

async with running_server(model=ScriptedModel(["<answer>42</answer>"])) as server:
    async with AsyncClient(server.grpc, token=server.token) as client:
        reasoning = await client.reason("What is six times seven?")
assert reasoning.answer == "42"
"""

from reasond_server.testing.models import FunctionModel, Reply, ScriptedModel, ScriptError
from reasond_server.testing.server import running_server, running_server_in_thread

__all__ = [
    "FunctionModel",
    "Reply",
    "ScriptError",
    "ScriptedModel",
    "running_server",
    "running_server_in_thread",
]
