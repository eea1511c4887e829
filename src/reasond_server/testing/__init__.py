"""Support for tests of programs that use reasond: a real server in the test's process, scripted models, checks.

async with running_server(model=ScriptedModel(["<answer>42</answer>"])) as server:
    async with AsyncClient(server.grpc, token=server.token) as client:
        reasoning = await client.reason("What is six times seven?")
assert reasoning.answer == "42"

`StrategyConformance` checks a strategy of your own, `ContextProviderConformance` a context provider of turns.
"""

from reasond_server.testing.conformance import ConformanceError
from reasond_server.testing.context_providers import ContextProviderConformance
from reasond_server.testing.models import FunctionModel, FunctionPrograms, Reply, ScriptedModel, ScriptError
from reasond_server.testing.server import running_server, running_server_in_thread
from reasond_server.testing.strategies import StrategyConformance

__all__ = [
    "ConformanceError",
    "ContextProviderConformance",
    "FunctionModel",
    "FunctionPrograms",
    "Reply",
    "ScriptError",
    "ScriptedModel",
    "StrategyConformance",
    "running_server",
    "running_server_in_thread",
]
