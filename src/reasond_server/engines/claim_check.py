"""The claim check of payloads: an engine holds digests and sizes; what they stand for stays in our own store."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from reasond_server.engines.payload_store import PAYLOAD
from reasond_server.errors.base import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from temporalio.converter import SerializationContext

    from reasond_server.engines.payload_store import PayloadStore

ENCODING: Final = b"json/reasond-claim"
_PREFIX: Final = "repair/"


def workflow_id_of(tenant: str, execution_id: str) -> str:
    """Return the id of the workflow that works an execution out."""
    return f"{_PREFIX}{tenant}/{execution_id}"


class ClaimCheckCodec(PayloadCodec, WithSerializationContext):
    """Puts every payload of a workflow into `store` and hands its digest on, whatever its size.

    So the history of a workflow holds no text of callers, models or tools.
    """

    def __init__(self, store: PayloadStore, workflow_id: str = "") -> None:
        self._store = store
        self._tenant, _, self._execution_id = workflow_id.removeprefix(_PREFIX).rpartition("/")

    def with_context(self, context: SerializationContext) -> Self:
        """Return the codec of one workflow."""
        if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext) and context.workflow_id:
            return type(self)(self._store, context.workflow_id)
        return self

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Keep the payloads and return their claims.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        bodies = [payload.SerializeToString(deterministic=True) for payload in payloads]
        names = [f"{PAYLOAD}{hashlib.sha256(body).hexdigest()}" for body in bodies]
        await self._store.put(self._tenant, self._execution_id, dict(zip(names, bodies, strict=True)))
        return [
            Payload(metadata={"encoding": ENCODING}, data=json.dumps({"name": name, "size_bytes": len(body)}).encode())
            for name, body in zip(names, bodies, strict=True)
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads that claims stand for.

        Raises:
            StoreUnavailableError: the store cannot be reached.
            InternalError: the execution was deleted, or its payloads were removed.
        """
        names = [_name_in(payload) for payload in payloads]
        found = await self._store.read(self._tenant, self._execution_id, [name for name in names if name])
        if any(name and name not in found for name in names):
            raise InternalError("the payloads of an execution are gone: it has ended, or was deleted")
        return [Payload.FromString(found[name]) if name else each for name, each in zip(names, payloads, strict=True)]


def _name_in(payload: Payload) -> str:
    """Return the name in a claim; empty if it is none."""
    return str(json.loads(payload.data)["name"]) if payload.metadata.get("encoding") == ENCODING else ""
