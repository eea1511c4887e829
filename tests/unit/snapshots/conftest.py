"""Empty stores of snapshots of all three kinds, and manifests to put into them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from reasond_server.assembly.stores import StoreOptions, Stores, open_stores
from reasond_server.snapshots.manifests import build_entries, digest_content
from reasond_server.snapshots.snapshot_store import SnapshotQuota, SnapshotStore
from reasond_server.types.repairs import FileEntry, Snapshot, SourceFile
from tests.unit.eventlog.stored.conftest import Time

KEPT_S = 3600.0
QUOTA = SnapshotQuota(max_bytes=1_000_000, max_snapshots=5)


class Uploader:
    """A client of one tenant that talks to a store as the service does."""

    def __init__(self, store: SnapshotStore, time: Time, tenant: str = "acme") -> None:
        self.store = store
        self.time = time
        self.tenant = tenant
        self.sent: list[str] = []

    async def create(self, contents: Mapping[str, bytes], *, kept_s: float = KEPT_S) -> Snapshot:
        now = self.time.now()
        return await self.store.create(
            self.tenant, entries_of(contents), now=now, expire_time=now + timedelta(seconds=kept_s)
        )

    async def upload(self, contents: Mapping[str, bytes], *, kept_s: float = KEPT_S) -> Snapshot:
        """Create a snapshot, send what is missing, and return it as it is then."""
        snapshot = await self.create(contents, kept_s=kept_s)
        if snapshot.missing:
            self.sent += snapshot.missing
            known = {digest_content(content): content for content in contents.values()}
            await self.store.put(self.tenant, {digest: known[digest] for digest in snapshot.missing})
        return await self.find(snapshot.snapshot_id)

    async def find(self, snapshot_id: str, *, kept_s: float = 0.0) -> Snapshot:
        now = self.time.now()
        return await self.store.find(self.tenant, snapshot_id, now=now, expire_time=now + timedelta(seconds=kept_s))

    async def read(self, *contents: bytes) -> list[bytes]:
        """Return those of the contents that the store has."""
        return sorted((await self.store.read(self.tenant, [digest_content(content) for content in contents])).values())

    async def sweep(self, limit: int = 100) -> int:
        return await self.store.sweep(now=self.time.now(), limit=limit)


def entries_of(contents: Mapping[str, bytes]) -> list[FileEntry]:
    return [*build_entries([SourceFile(path=path, content=content) for path, content in contents.items()])]


@asynccontextmanager
async def open_snapshots(url: str, folder: Path, time: Time) -> AsyncGenerator[SnapshotStore]:
    async with open_all(url, folder, time) as stores:
        yield stores.snapshots


@asynccontextmanager
async def open_all(url: str, folder: Path, time: Time) -> AsyncGenerator[Stores]:
    stores = await open_stores(
        StoreOptions(
            url=url,
            data_dir=str(folder),
            now=time.now,
            monotonic=time.monotonic,
            max_bytes=10**6,
            max_agents=10,
            snapshot_quota=QUOTA,
        )
    )
    try:
        yield stores
    finally:
        await stores.aclose()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, time: Time) -> AsyncGenerator[SnapshotStore]:
    """Each kind of store in turn."""
    urls = {"memory": "memory:", "sqlite": ""}
    url = urls[request.param] if request.param in urls else request.getfixturevalue("postgres_url")
    async with open_snapshots(url, tmp_path, time) as opened:
        yield opened


@pytest.fixture
def ann(store: SnapshotStore, time: Time) -> Uploader:
    return Uploader(store, time)
