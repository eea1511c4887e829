"""`[repair] model_preference`: a repair asks these backends in their order, and not the server's model."""

from __future__ import annotations

import reasond
from reasond_server.testing import ScriptedModel, running_server
from tests.faults.upstream import DONE, chunk, refusing, streaming, upstream, usage

PLAN = "1. Install Fastify with `npm install fastify`\n2. Implement the Redis client in src/session.js\n3. Add tests"


def settings_of(name: str, address: str) -> dict[str, str]:
    prefix = f"REASOND__LLM__BACKENDS__{name}__"
    return {f"{prefix}MODEL": f"{name.lower()}-7b", f"{prefix}BASE_URL": address, f"{prefix}API_KEY_ENV": ""}


async def test_a_repair_asks_the_next_backend_where_the_first_one_refuses_before_anything_is_spent() -> None:
    planning = streaming(chunk(PLAN), chunk(finish="stop"), usage(40, 5), DONE)
    async with upstream(refusing("429 Too Many Requests")) as small, upstream(planning) as large:
        environ = {
            "REASOND__REPAIR__ENABLED": "true",
            "REASOND__REPAIR__SANDBOX__LEVEL": "off",
            "REASOND__REPAIR__MODEL_PREFERENCE": '["small", "large"]',
            "REASOND__LLM__MAX_ATTEMPTS": "1",
            **settings_of("SMALL", small.address),
            **settings_of("LARGE", large.address),
        }
        with ScriptedModel([]) as unused:
            async with (
                running_server(model=unused, environ=environ) as server,
                reasond.AsyncClient(server.grpc, token=server.token) as client,
            ):
                task = reasond.repair_task("Design an API with sessions in Redis", is_plan=True)
                done = await client.repair(task)
    assert "Redis client" in done.patch
    assert (small.conversations[0].json["model"], large.conversations[0].json["model"]) == ("small-7b", "large-7b")
    assert any("small-7b refused a call" in warning for warning in done.warnings)
