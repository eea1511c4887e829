"""The repair service for the asynchronous client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from reasond import requests, snapshots
from reasond.async_calls import AsyncRepairStream
from reasond.errors import UnavailableError
from reasond.progress import Progress, policy_of
from reasond.v1 import repair_service_pb2 as repairs_pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from reasond.async_calls import AsyncLink
    from reasond.progress import ReconnectPolicy
    from reasond.v1.execution_pb2 import ExecutionCursor
    from reasond.v1.repairs_pb2 import FileEntry, Repair, RepairTask

# Contents that another upload made expire are missing again; a server that keeps none would be asked forever.
_UPLOADS = 3


class AsyncRepairCalls:
    """Repairs and the snapshots of their code; a part of `AsyncClient`.

    Repairs take minutes: give `timeout_s`, which is `math.inf` for no deadline.
    """

    _link: AsyncLink

    async def repair(
        self, task: RepairTask, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> Repair:
        """Work a repair out and return its result; `is_accepted` says whether it passes everything that was asked.

        Args:
            task: What to do, from `repair_task`.
            request_id: Idempotency key: the same id with the same request finds the same repair; random if None.
            timeout_s: Deadline of this call in seconds.
        """
        request = repairs_pb.RepairRequest(task=task, request_id=requests.request_id_or_new(request_id))
        return (await self._link.answer(self._link.repairs.Repair, request, timeout_s)).repair

    def repair_steps(
        self,
        source: RepairTask | ExecutionCursor,
        *,
        request_id: str | None = None,
        include_deltas: bool = False,
        keep_running: bool = False,
        reconnect: bool | ReconnectPolicy = False,
        timeout_s: float | None = None,
    ) -> AsyncRepairStream:
        """Work a repair out, or follow one, and stream its events.

        Args:
            source: What to do, from `repair_task`, or the place in the log of a repair to follow it from.
            request_id: See `repair`; only for a task.
            include_deltas: Also stream the text of the model as it is generated.
            keep_running: Continue the repair if the stream ends early or breaks, so that a cursor can follow it.
            reconnect: Resume automatically if the connection breaks; needs `keep_running`. Logged events are never
                repeated, deltas may be.
            timeout_s: Deadline of the whole stream in seconds.
        """
        if reconnect and not keep_running:
            raise ValueError("reconnect needs keep_running=True: a repair that ends with its stream is gone")
        request = requests.repair_steps_request(
            source, request_id=request_id, include_deltas=include_deltas, keep_running=keep_running
        )
        progress = Progress(
            start=request,
            policy=policy_of(reconnect),
            timeout_s=self._link.connection.deadline_s(timeout_s),
            has_token_provider=self._link.has_token_provider,
        )
        return AsyncRepairStream(self._link.open_repair, progress)

    async def get_repair(self, execution_id: str, *, timeout_s: float | None = None) -> repairs_pb.GetRepairResponse:
        """Return a repair, with its result once it has ended."""
        request = repairs_pb.GetRepairRequest(execution_id=execution_id)
        return await self._link.answer(self._link.repairs.GetRepair, request, timeout_s)

    async def create_snapshot(
        self, manifest: Iterable[FileEntry], *, timeout_s: float | None = None
    ) -> repairs_pb.CreateSnapshotResponse:
        """Keep a manifest and return its snapshot, with the digests of the contents to upload."""
        request = repairs_pb.CreateSnapshotRequest(manifest=manifest)
        return await self._link.answer(self._link.repairs.CreateSnapshot, request, timeout_s)

    async def upload_blobs(self, contents: Iterable[bytes], *, timeout_s: float | None = None) -> Sequence[str]:
        """Upload contents that a snapshot misses, at most 3 MiB together; return their digests in order."""
        request = repairs_pb.UploadBlobsRequest(contents=contents)
        return (await self._link.answer(self._link.repairs.UploadBlobs, request, timeout_s)).digests

    async def upload_snapshot(
        self, path: str | PathLike[str], *, only: Sequence[str] = (), timeout_s: float | None = None
    ) -> snapshots.UploadedSnapshot:
        """Upload the files of a folder that the server does not have yet; a repair takes the `snapshot_id`.

        In a git repository the files are those that git knows, and new ones that it does not ignore. Secrets such as
        `.env` and private keys, symbolic links and files over 1 MiB are left out; `left_out` names each with the
        reason.

        Args:
            path: The folder.
            only: Folders and glob patterns of paths below it; nothing else is sent. Empty: all.
            timeout_s: Deadline of each call in seconds.

        Raises:
            ValueError: the folder has no file to send, git does not answer there, or a file changed meanwhile.
            OSError: the folder or a file cannot be read.
        """
        folder = await self._link.run(partial(snapshots.read_folder, only=only), path)
        created = await self.create_snapshot(folder.manifest, timeout_s=timeout_s)
        sent_contents = sent_bytes = 0
        for _ in range(_UPLOADS):
            for batch in folder.split(created.missing):
                contents = await self._link.run(folder.read_contents, batch)
                await self.upload_blobs(contents, timeout_s=timeout_s)
                sent_contents += len(contents)
                sent_bytes += sum(map(len, contents))
            if created.missing:
                created = await self.create_snapshot(folder.manifest, timeout_s=timeout_s)
        if created.missing:
            message = f"the server misses {len(created.missing)} contents, though they were uploaded {_UPLOADS} times"
            raise UnavailableError(message)
        return snapshots.UploadedSnapshot(
            snapshot=created.snapshot, sent_contents=sent_contents, sent_bytes=sent_bytes, left_out=folder.left_out
        )

    async def list_environments(self, *, timeout_s: float | None = None) -> repairs_pb.ListEnvironmentsResponse:
        """Return the environments in which checks run, the level of the sandbox, and the server's commands."""
        request = repairs_pb.ListEnvironmentsRequest()
        return await self._link.answer(self._link.repairs.ListEnvironments, request, timeout_s)
