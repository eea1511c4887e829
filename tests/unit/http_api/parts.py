"""A real core behind a real HTTP listener on a loopback port, with tokens to call it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from reasond_server.access.permissions import ADMIN, require_permission
from reasond_server.access.token_keys import SigningKey, StaticKeys
from reasond_server.access.token_verifier import TokenRules, TokenVerifier
from reasond_server.access.tokens import TokenMinter
from reasond_server.agents.cards import build_server_card
from reasond_server.agents.directory import AgentService
from reasond_server.assembly.core import Core, assemble
from reasond_server.config import Settings
from reasond_server.http_api.http_app import HttpApp, HttpLimits
from reasond_server.http_api.http_calls import Methods
from reasond_server.http_api.http_server import HttpServer
from reasond_server.services import DECLARED
from reasond_server.services.agents import build_agent_service
from reasond_server.services.executions import build_execution_service
from reasond_server.services.reasoning import build_reasoning_service, read_partial
from reasond_server.services.repairs import build_repair_service
from reasond_server.services.turns import build_turn_service
from reasond_server.testing import FunctionModel
from tests.http_clients import WITHOUT_AUTHORITIES, make_http_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    import httpx

    from reasond_server.base.certificates import TlsFiles
    from reasond_server.http_api.connections import ConnectionLimits
    from reasond_server.llm.model import ChatModel

KEY = SigningKey(id="tests", secret=b"a secret of the tests, 32 bytes.")
MINTER = TokenMinter(key=KEY, issuer="reasond", audience="reasond", max_lifetime_s=3600)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A running server and a client for it."""

    server: HttpServer
    core: Core
    agents: AgentService
    client: httpx.AsyncClient
    model: Any
    readiness: dict[str, bool]

    @staticmethod
    def token(*permissions: str, subject: str = "alice", tenant: str | None = None) -> str:
        return MINTER.mint(
            subject=subject,
            permissions=permissions or [ADMIN],
            lifetime_s=600,
            now=datetime.now(UTC),
            tenant=tenant,
        )

    async def post(self, payload: object, **headers: str) -> httpx.Response:
        content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(
            "/api/v1/jsonrpc", content=content, headers={"content-type": "application/json", **named}
        )

    async def call(self, method: str, params: Mapping[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """Call a method with an administrator's token and return the whole answer."""
        asked = {"auth_token": self.token(), **(params or {})}
        response = await self.post({"jsonrpc": "2.0", "method": method, "params": asked, "id": 1}, **headers)
        assert response.status_code == 200
        answer: dict[str, Any] = response.json()
        return answer


def verifier() -> TokenVerifier:
    """Return a verifier that accepts the tokens of `Site.token`."""
    return TokenVerifier(
        keys=StaticKeys([KEY.verifying_key]),
        rules=TokenRules(issuer="reasond", audience="reasond", leeway_s=30, max_lifetime_s=3600),
        now=lambda: datetime.now(UTC),
    )


ServeSite = Callable[..., Awaitable[Site]]


async def serve(
    stack: AsyncExitStack,
    model: ChatModel | None = None,
    *,
    settings: Settings | None = None,
    limits: HttpLimits | None = None,
    connections: ConnectionLimits | None = None,
    tls: TlsFiles | None = None,
    verify: Any = WITHOUT_AUTHORITIES,
    require_permission: Callable[..., None] = require_permission,
    turns: Any = None,
    repairs: Any = None,
) -> Site:
    """Start a site; `stack` stops it."""
    chosen = model or FunctionModel(lambda _: "6 times 7 is 42.<answer>42</answer>")
    core = assemble(settings or Settings(), model=chosen)
    agents = AgentService(directory=core.directory, server_card=_card(core), max_card_bytes=100_000)
    readiness = {"is_ready": True}
    numbers = itertools.count(1)
    app = HttpApp(
        methods=methods_of(core.reasoning, agents, turns, repairs),
        card=agents.build_own_card,
        authenticate=verifier().verify,
        require=require_permission,
        is_ready=lambda: readiness["is_ready"],
        new_call_id=lambda: f"minted-{next(numbers)}",
        limits=limits or HttpLimits(),
    )
    server = HttpServer(app=app, host="127.0.0.1", port=0, tls=tls, limits=connections)
    await server.start()
    stack.push_async_callback(server.stop, 0)
    stack.push_async_callback(core.runner.stop)
    scheme = "https" if tls else "http"
    client = make_http_client(base_url=f"{scheme}://127.0.0.1:{server.port}", timeout=180, verify=verify)
    await stack.enter_async_context(client)
    return Site(server=server, core=core, agents=agents, client=client, model=chosen, readiness=readiness)


def methods_of(reasoning: Any, agents: AgentService, turns: Any = None, repairs: Any = None) -> Methods:
    """Return the methods of all services."""
    services = [
        build_reasoning_service(reasoning),
        build_agent_service(agents),
        build_turn_service(turns),
        build_repair_service(repairs),
        build_execution_service(reasoning.desk, reasoning.desk),
    ]
    return Methods([service.methods for service in services], read_partial=partial(read_partial, reasoning))


def _card(core: Core) -> Callable[[], dict[str, Any]]:
    names: Sequence[str] = sorted(name for service in DECLARED for name in service.methods)

    def card() -> dict[str, Any]:
        return build_server_card(
            name="reasond",
            version="0",
            grpc_url="127.0.0.1:50051",
            jsonrpc_url="http://127.0.0.1:8001/api/v1/jsonrpc",
            strategies={info.name: info.description for info in core.reasoning.strategies()},
            supported_methods=names,
        )

    return card
