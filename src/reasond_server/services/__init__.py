"""What is served: one module for each service, with its RPCs, JSON-RPC methods and permissions together.

The servers take a list of services and know none by name. A new service is a module here, its servicer in `grpc_api`,
the parameters of its methods in `http_api`, and an entry in `DECLARED`.
"""

from typing import Final

from reasond_server.services import agents, reasoning

DECLARED: Final = (reasoning.DECLARATION, agents.DECLARATION)
"""Every service of this release; the metrics, the health service and the agent card take their names from here."""
