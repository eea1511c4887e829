"""The services: one module for each, with its RPCs, JSON-RPC methods and permissions.

The servers take a list of services and know none by name. A new service needs a module here, a servicer in `grpc_api`,
the parameters of its methods in `http_api`, and an entry in `DECLARED`.
"""

from typing import Final

from reasond_server.services import agents, executions, reasoning, repairs, turns

DECLARED: Final = (
    reasoning.DECLARATION,
    turns.DECLARATION,
    repairs.DECLARATION,
    executions.DECLARATION,
    executions.OPERATIONS,
    agents.DECLARATION,
)
"""Every service of this release; the metrics, the health service and the agent card take their names from here."""
