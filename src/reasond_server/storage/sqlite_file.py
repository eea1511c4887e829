"""One SQLite file: one thread writes, a few threads read, and the event loop never blocks."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import queue
import shutil
import sqlite3
import struct
import sys
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from reasond_server.errors.base import InternalError, SettingsError, show
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.storage.revisions import (
    VERSION_TABLE,
    SchemaState,
    build_sqlite_statements,
    read_schema_state,
    require_current,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from sqlite3 import Connection

ResultT = TypeVar("ResultT")
_Job: TypeAlias = "tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[..., Any], tuple[object, ...]]"

_log = logging.getLogger("reasond.storage")
_READERS: Final = 2
PAGE_BYTES: Final = 4096
# The default is 2 MB per connection, but the operating system caches the pages of the file anyway.
_WRITER_CACHE_KIB: Final = 512
_READER_CACHE_KIB: Final = 256
_CHECKED_BYTES: Final = 64 * 2**20
# The file, its write-ahead log and the index of that; SQLite keeps all three open.
_OPEN_SUFFIXES: Final = ("", "-wal", "-shm")
# Of the index: the size of pages, the last frame and its checksum. Of a frame: its checksum.
_INDEX_HEAD: Final = struct.Struct("=14xHI4xII")
_LOG_HEAD_BYTES: Final = 32
_FRAME_HEAD: Final = struct.Struct(">16xII")
# Only on Linux are `flock` locks independent of SQLite's locks on the same file; elsewhere a separate file is locked.
_LOCKED_SUFFIX: Final = "" if sys.platform == "linux" else ".lock"
_KEEP_IT: Final = "Keep the file: nothing says that it is damaged."
# Meaning and remedy of each SQLite error at the start. Only damage is a reason to move the file away.
_DAMAGE: Final = ("is damaged", "Restore it from a backup, or move it away: the server then begins with an empty one.")
_FULL: Final = ("cannot be written: its disk, or [store] max_file_bytes, is full", f"Free space there. {_KEEP_IT}")
_UNUSABLE: Final = {
    sqlite3.SQLITE_CORRUPT: _DAMAGE,
    sqlite3.SQLITE_NOTADB: ("is no SQLite database, or damaged", _DAMAGE[1]),
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: (
        "cannot be read or written",
        f"Look at its disk: a full one, a quota or a fault of the disk refuses this. {_KEEP_IT}",
    ),
    sqlite3.SQLITE_BUSY: ("is in use by another program", "End what has it open."),
}
_NOT_OPENED: Final = (
    "cannot be opened",
    f"Let the server's user read and write it and its folder, and check that reasond made it. {_KEEP_IT}",
)


class SqliteFile:
    """An open database file, locked against other processes; made by `open`.

    It uses the driver of the standard library. SQLAlchemy and Alembic would take 25 MB and a third of the start time,
    so they are loaded only to migrate a file of an earlier release.

    `write` and `read` run a function on a connection inside one transaction. They raise StoreFullError if the disk
    (or `max_file_bytes`) is full. They raise StoreUnavailableError if the file cannot be reached, is closed, or was
    deleted, replaced or cut at `path`: data written to a deleted file is lost when this process ends. The same holds
    for the write-ahead log and its index beside it.
    """

    def __init__(
        self, *, path: Path, lock: int, writer: Connection, new_reader: Callable[[], Connection], max_file_bytes: int
    ) -> None:
        # Texts, because looking for a `Path` takes twice as long, and every transaction does.
        self._paths = [f"{path}{suffix}" for suffix in _OPEN_SUFFIXES]
        looks = [*map(_look_at, self._paths)]
        self._identities = [identity for identity, _ in looks]
        # Bytes before the last write; only `erase` makes one of the files smaller, and only the log.
        self._sizes = [size for _, size in looks]
        self._is_cut = False
        self._max_bytes = max_file_bytes
        self._lock = lock
        # Open as long as SQLite has it: to close any descriptor of a file gives up the locks that SQLite holds on it.
        self._index = os.open(self._paths[2], os.O_RDONLY | os.O_CLOEXEC)
        self._writer = writer
        self._new_reader = new_reader
        self._writing = _Threads(1, "sqlite-writer")
        self._reading = _Threads(_READERS, "sqlite-reader")
        self._readers: queue.SimpleQueue[Connection] = queue.SimpleQueue()

    @classmethod
    async def open(
        cls, path: Path, *, synchronous: str = "NORMAL", max_file_bytes: int = 0, checked_bytes: int = _CHECKED_BYTES
    ) -> SqliteFile:
        """Open the file, and create it and its tables if it does not exist; `max_file_bytes` 0 means no limit.

        SQLite checks the whole file if it has at most `checked_bytes` bytes, or was not closed properly.

        Raises:
            SettingsError: another process has the file open; the file is not a database, is damaged, or cannot be
                written; or its schema is not that of this release.
        """
        return await asyncio.to_thread(_open, path, synchronous, max_file_bytes, checked_bytes)

    @property
    def is_in_place(self) -> bool:
        """Whether the open file, its write-ahead log and its index are still those at their paths, and whole."""
        sizes = self._sizes
        looks = [*map(_look_at, self._paths)]
        if self._is_cut or None in self._identities or [identity for identity, _ in looks] != self._identities:
            return False
        is_whole = all(found >= before for (_, found), before in zip(looks, sizes, strict=True))
        # Where the writer was at work meanwhile, it has looked itself.
        return is_whole or self._sizes is not sizes

    def find_foreign_log(self) -> bool:
        """Return whether another write-ahead log was written over ours; if so, nothing is written any more.

        SQLite itself would read pages of the other log as if they were its own, and move them into the file.
        """
        self._is_cut = self._is_cut or not _is_log_of_index(self._paths[1], self._index)
        return self._is_cut

    async def write(self, job: Callable[[Connection], ResultT], *, then: Callable[[ResultT], None]) -> ResultT:
        """Run `job` in its own transaction; call `then` on the event loop after the commit.

        `then` is called even if the caller is cancelled meanwhile, because the commit still happens.
        """
        future = self._writing.submit(self._run_write, job)

        def tell(done: asyncio.Future[ResultT]) -> None:
            if not done.cancelled() and done.exception() is None:
                then(done.result())

        future.add_done_callback(tell)
        return await asyncio.shield(future)

    async def read(self, job: Callable[[Connection], ResultT]) -> ResultT:
        """Run `job`, which only reads, in its own transaction."""
        return await self._reading.submit(self._run_read, job)

    async def read_size(self) -> int:
        """Return the bytes of the file that are in use."""
        return await self.read(read_used_bytes)

    async def read_share(self) -> float:
        """Return the share of `max_file_bytes` that is in use; 0 without that bound."""
        return await self.read_size() / self._max_bytes if self._max_bytes else 0.0

    async def read_share_of_disk(self) -> float:
        """Return the share that the file has of itself and of what is free on its disk."""
        size = await self.read_size()
        free = (await asyncio.to_thread(shutil.disk_usage, os.path.dirname(self._paths[0]))).free  # noqa: PTH120 - see `_paths`
        return size / (size + free)

    async def erase(self) -> None:
        """Move the write-ahead log into the file and truncate it: it still contains deleted pages.

        A log that was deleted while it was open is moved as well, so that what was committed is kept.
        """

        def checkpoint() -> None:
            # A cut index would end the process by SIGBUS.
            self._require_whole()
            file_bytes, _, index_bytes = self._sizes
            self._sizes = [file_bytes, 0, index_bytes]
            with translate_errors():
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()

        await self._writing.submit(checkpoint)

    async def aclose(self) -> None:
        """Wait for running jobs, close the file and release the lock."""
        await asyncio.to_thread(self._close)

    def _run_write(self, job: Callable[[Connection], ResultT]) -> ResultT:
        self._require_in_place()
        self._require_whole()
        with translate_errors():
            return run_transaction(self._writer, "BEGIN IMMEDIATE", job)

    def _run_read(self, job: Callable[[Connection], ResultT]) -> ResultT:
        # A new reader would open or create another file.
        self._require_in_place()
        with translate_errors():
            # There are as many threads as readers, so a thread finds a free reader or opens its own.
            try:
                connection = self._readers.get_nowait()
            except queue.Empty:
                connection = self._new_reader()
            try:
                return run_transaction(connection, "BEGIN", job)
            finally:
                self._readers.put(connection)

    def _require_in_place(self) -> None:
        if not self.is_in_place:
            raise _build_absence()

    def _require_whole(self) -> None:
        """Note the sizes of the files, if none was cut; only the thread that writes calls this."""
        looks = [*map(_look_at, self._paths)]
        for (identity, found), known, before in zip(looks, self._identities, self._sizes, strict=True):
            self._is_cut = self._is_cut or (identity == known and found < before)
        if self._is_cut:
            raise _build_absence()
        self._sizes = [found for _, found in looks]

    def _close(self) -> None:
        self._reading.close()
        self._writing.close()
        while not self._readers.empty():
            self._readers.get_nowait().close()
        self._writer.close()
        os.close(self._index)
        os.close(self._lock)


class _Threads:
    """A few threads that run jobs in order. An executor takes twice the processor time for each."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_closed = False
        # Daemons, so that a file that nobody closed does not keep the process.
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[..., ResultT], *args: object) -> asyncio.Future[ResultT]:
        """Run `work` in one of the threads and return its future; one that is cancelled before is left out.

        Raises:
            StoreUnavailableError: the file is closed.
        """
        if self._is_closed:
            raise StoreUnavailableError(
                "The store is closed, because the server shuts down", remedy="Retry after the time given."
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._jobs.put((loop, future, work, args))
        return future

    def close(self) -> None:
        """Wait for the jobs; no other is taken any more."""
        self._is_closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _run_job(*job)
            # What it holds must not live until the next one comes.
            del job


def _run_job(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], work: Callable[..., Any], args: tuple[object, ...]
) -> None:
    if future.cancelled():
        return
    result, failure = None, None
    try:
        result = work(*args)
    except BaseException as error:  # noqa: BLE001 - told to who waits
        failure = error
    # A loop that is closed has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, future, result, failure)
    # Its traceback leads to this frame, so the frame must not lead to it.
    del failure


def _settle(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


def open_memory() -> Connection:
    """Return a database in memory with the tables of this release; each statement commits unless one began before."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    # Debian's SQLite overwrites by itself what is deleted; here none of it is on a disk.
    _set_pragmas(connection, "foreign_keys = ON", "secure_delete = OFF")
    _make_tables(connection)
    return connection


def read_used_bytes(connection: Connection) -> int:
    """Return the bytes of a database that are in use."""
    tables = "pragma_page_count, pragma_freelist_count, pragma_page_size"
    query = f"SELECT (page_count - freelist_count) * page_size FROM {tables}"  # noqa: S608 - a constant
    size: int = connection.execute(query).fetchone()[0]
    return size


def migrate_file(path: Path) -> None:
    """Migrate the file to the schema of this release, or create it. Raises the same errors as `SqliteFile.open`."""
    lock = _lock_file(path)
    try:
        with _refuse_unusable(path), closing(_connect(path, synchronous="FULL")) as connection:
            state = _read_state(connection)
            _prepare_writer(connection)
            if state is SchemaState.EMPTY:
                _make_tables(connection)
            elif state is SchemaState.BEHIND:
                _upgrade(connection)
            else:
                require_current(state, where=str(path))
    finally:
        os.close(lock)


def read_file_state(path: Path) -> SchemaState:
    """Return the state of the schema without changing or locking the file. Raises the errors of `SqliteFile.open`."""
    if not path.exists():
        return SchemaState.EMPTY
    with _refuse_unusable(path), closing(_connect_reader(path, "NORMAL")) as connection:
        return _read_state(connection)


def _open(path: Path, synchronous: str, max_file_bytes: int, checked_bytes: int) -> SqliteFile:
    lock = _lock_file(path)
    try:
        is_checked = _needs_check(path, checked_bytes)
        with _refuse_unusable(path):
            writer = _connect(path, synchronous=synchronous)
            try:
                state = _read_state(writer)
                _prepare_writer(writer, max_file_bytes)
                if state is SchemaState.EMPTY:
                    _make_tables(writer)
                else:
                    require_current(state, where=str(path))
                if is_checked:
                    _require_sound(writer, path)
            except BaseException:
                writer.close()
                raise
    except BaseException:
        os.close(lock)
        raise
    return SqliteFile(
        path=path,
        lock=lock,
        writer=writer,
        new_reader=lambda: _connect_reader(path, synchronous),
        max_file_bytes=max_file_bytes,
    )


def _read_state(connection: Connection) -> SchemaState:
    """Return the state of the schema; the file is not changed, because it may belong to another program."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    names = {name for (name,) in connection.execute(query)}
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if VERSION_TABLE in names else None
    return read_schema_state(names, row and row[0])


def _make_tables(connection: Connection) -> None:
    """Create the tables of this release, all or none."""

    def job(connection: Connection) -> None:
        for statement in build_sqlite_statements():
            connection.execute(statement)

    run_transaction(connection, "BEGIN IMMEDIATE", job)


def _upgrade(connection: Connection) -> None:
    """Run the migrations that the file lacks, all or none."""
    # Imported here because a server with a current schema never needs it.
    import sqlalchemy as sa  # noqa: PLC0415 - as above

    from reasond_server.storage.migration_runner import upgrade_schema  # noqa: PLC0415 - as above

    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=sa.StaticPool)

    @sa.event.listens_for(engine, "begin")
    def begin(begun: sa.Connection) -> None:
        # The driver begins as a reader, which would fail at the first write, so begin as a writer.
        begun.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        with engine.begin() as upgraded:
            upgrade_schema(upgraded)
    except sa.exc.DBAPIError as error:
        # `_refuse_unusable` translates the driver's own errors.
        raise error.orig or error from error


def _needs_check(path: Path, checked_bytes: int) -> bool:
    """Return whether to check the whole file; call this before the file is opened, because opening removes the log."""
    log, size = path.with_name(f"{path.name}-wal"), path.stat().st_size
    if size <= checked_bytes:
        return True
    if not log.exists():
        return False
    _log.warning("the store was not closed; its whole file is checked", extra={"bytes": size})
    return True


def _require_sound(connection: Connection, path: Path) -> None:
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise _build_settings_error(path, *_DAMAGE)


def _lock_file(path: Path) -> int:
    """Create the file with access for its owner only and lock it against other processes; return the lock's descriptor.

    On Linux the lock is on the database file itself, so deleting another file never lets a second process in.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        lock = os.open(f"{path}{_LOCKED_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        remedy = "Let the server's user write there, or set another [store] url or data_dir."
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            remedy = f"Free space there. {_KEEP_IT}"
        raise _build_settings_error(path, f"cannot be opened for writing ({error.strerror})", remedy) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        remedy = "Stop that server first, give this one another [store] data_dir, or use PostgreSQL for several."
        raise _build_settings_error(path, "is in use by another process", remedy) from error
    return lock


def _look_at(path: str) -> tuple[tuple[int, int] | None, int]:
    """Return device and inode of the file at `path`, which identify it, and its bytes; None and 0 if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - see `SqliteFile._paths`
    except OSError:
        return None, 0
    return (found.st_dev, found.st_ino), found.st_size


def _is_log_of_index(path: str, index: int) -> bool:
    """Return whether the last frame that the open `index` knows has the checksum in the log that it notes for it.

    Source: sqlite.org/walformat.html, section 2.1 (the index), and fileformat2.html, section 4.1 (the log).
    """
    with suppress(OSError, struct.error), open(path, "rb") as log:  # noqa: PTH123 - see `SqliteFile._paths`
        head = os.pread(index, _INDEX_HEAD.size, 0)
        page, last, *noted = _INDEX_HEAD.unpack(head)
        if last:
            log.seek(_LOG_HEAD_BYTES + (last - 1) * (_FRAME_HEAD.size + (page & 0xFE00) + ((page & 1) << 16)))
            found = [*_FRAME_HEAD.unpack(log.read(_FRAME_HEAD.size))]
            # Where the writer was at work meanwhile, the next look compares.
            return found == noted or os.pread(index, _INDEX_HEAD.size, 0) != head
    # A log that is gone or too short is noticed by `is_in_place`.
    return True


def _build_absence() -> StoreUnavailableError:
    return StoreUnavailableError(
        "A file of the store was deleted, replaced or cut", remedy="Have it put back, or the server restarted."
    )


def _connect(path: Path, *, synchronous: str) -> Connection:
    """Return a connection; `run_transaction` begins its transactions."""
    # Only one thread at a time uses the connection, but another thread closes it.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    _set_pragmas(
        connection,
        "busy_timeout = 5000",
        "foreign_keys = ON",
        # DeleteExecution promises that deleted content is overwritten.
        "secure_delete = ON",
        f"synchronous = {synchronous}",
    )
    return connection


def _connect_reader(path: Path, synchronous: str) -> Connection:
    connection = _connect(path, synchronous=synchronous)
    _set_pragmas(connection, "query_only = ON", f"cache_size = -{_READER_CACHE_KIB}")
    return connection


def _prepare_writer(connection: Connection, max_file_bytes: int = 0) -> None:
    """Prepare a connection for writing; this changes the file, so call it only after the file was checked."""
    _set_pragmas(connection, f"page_size = {PAGE_BYTES}", "journal_mode = WAL", f"cache_size = -{_WRITER_CACHE_KIB}")
    if max_file_bytes:
        _set_pragmas(connection, f"max_page_count = {max(1, max_file_bytes // PAGE_BYTES)}")


def _set_pragmas(connection: Connection, *pragmas: str) -> None:
    """Set `pragmas`; close the connection if that fails."""
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()
    except BaseException:
        connection.close()
        raise


def run_transaction(connection: Connection, begin: str, job: Callable[[Connection], ResultT]) -> ResultT:
    """Return what `job` returns and commit its work, or roll it back if it raises."""
    connection.execute(begin)
    try:
        result = job(connection)
        connection.execute("COMMIT")
        return result
    finally:
        # After an error such as a full disk, SQLite has already rolled the transaction back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert the driver's errors to errors of reasond."""
    try:
        yield
    except sqlite3.Error as error:
        raise _convert_error(error) from error


def _convert_error(error: sqlite3.Error) -> StoreFullError | StoreUnavailableError | InternalError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(
            "The store is full: its disk, or the size that it may have",
            remedy="Free space, or raise [store] max_file_bytes; of a store in memory, max_bytes.",
        )
    # The error's text may contain a statement; its name is enough to tell a disk, a quota and another program apart.
    _log.warning("the file of the store failed", extra={"error": getattr(error, "sqlite_errorname", "unknown")})
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailableError(
            "The file of the store cannot be reached",
            remedy="Retry after the time given; the cause is in the server's log.",
        )
    return InternalError("the file of the store refused a statement")


@contextmanager
def _refuse_unusable(path: Path) -> Iterator[None]:
    """Convert the driver's errors at the start to SettingsError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise _build_settings_error(path, *_UNUSABLE.get(code, _NOT_OPENED)) from error


def _build_settings_error(path: Path, what: str, remedy: str) -> SettingsError:
    return SettingsError(f"The database {show(str(path))} {what}", remedy=remedy)
