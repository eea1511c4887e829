"""A process that works for the engine of repairs and serves nobody: another composition root beside `app`."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from reasond_server.assembly.backends import find_backend_problems, model_of, named_models_of
from reasond_server.assembly.core import open_stores_of, system_clock
from reasond_server.assembly.limiting import limiting_of
from reasond_server.assembly.repair_engines import engine_of, repair_worker_of
from reasond_server.assembly.workshops import open_workshop
from reasond_server.config.problems import settings_error
from reasond_server.errors.base import SettingsError
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.config import LoadedSettings
    from reasond_server.llm.model import ChatModel

MODELS: Final = "models"
"""The queue whose work needs models, and so their keys."""


async def work(
    loaded: LoadedSettings, *, environ: Mapping[str, str], queues: Sequence[str], on_ready: Callable[[str], None]
) -> None:
    """Work on `queues` of the engine that the settings name, until SIGINT or SIGTERM.

    Only the queue of models needs a model and its key. `on_ready` is called with the address of the engine.

    Raises:
        SettingsError: the configuration is refused, names no engine, or cannot be used.
    """
    settings, clock = loaded.settings, system_clock()
    if settings.engine.repair != "temporal":
        raise SettingsError(
            "[engine] repair names no engine that workers could work for",
            remedy='Set repair = "temporal" in [engine], with the address of the cluster.',
        )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        named: Mapping[str, ChatModel] = {}
        model: ChatModel | None = None
        if MODELS in queues:
            if problems := list(find_backend_problems(settings, environ)):
                raise settings_error(problems, {})
            model = model_of(settings, environ, loaded.folder)
            stack.push_async_callback(model.aclose)
            named = named_models_of(settings, environ, loaded.folder)
            for each in named.values():
                stack.push_async_callback(each.aclose)
        stores = await open_stores_of(settings, clock=clock, dev=False)
        stack.push_async_callback(stores.aclose)
        limiting = limiting_of(settings.limits)
        stack.push_async_callback(limiting.aclose)
        engine = engine_of(settings, stores, environ)
        assert engine is not None  # noqa: S101 - seen above
        opened = await open_workshop(settings.repair)
        stack.push_async_callback(opened.aclose)
        worker = repair_worker_of(
            settings,
            stores,
            opened.workshop,
            model=model,
            backends=named,
            limits=limiting.callers,
            observer=UNOBSERVED,
        )
        engine.begin_work(worker, queues)
        stack.push_async_callback(engine.aclose)
        on_ready(settings.engine.address)
        await stopped.wait()
