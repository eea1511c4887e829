"""A process that works for the engine of repairs and serves nobody: another composition root beside `app`."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from reasond_server.assembly.backends import create_model, create_named_models, find_backend_problems
from reasond_server.assembly.core import make_system_clock, open_chosen_stores
from reasond_server.assembly.limit_backend import build_limit_backend
from reasond_server.assembly.workshops import build_engine, build_repair_worker, open_workshop
from reasond_server.config.problems import build_settings_error
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
    settings, clock = loaded.settings, make_system_clock()
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
                raise build_settings_error(problems, {})
            model = create_model(settings, environ, loaded.folder)
            stack.push_async_callback(model.aclose)
            named = create_named_models(settings, environ, loaded.folder)
            for each in named.values():
                stack.push_async_callback(each.aclose)
        stores = await open_chosen_stores(settings, clock=clock, dev=False)
        stack.push_async_callback(stores.aclose)
        limit_backend = build_limit_backend(settings.limits)
        stack.push_async_callback(limit_backend.aclose)
        engine = build_engine(settings, stores, environ)
        assert engine is not None  # noqa: S101 - seen above
        opened = await open_workshop(settings.repair)
        stack.push_async_callback(opened.aclose)
        worker = build_repair_worker(
            settings,
            stores,
            opened.workshop,
            model=model,
            backends=named,
            limits=limit_backend.callers,
            observer=UNOBSERVED,
        )
        engine.begin_work(worker, queues)
        stack.push_async_callback(engine.aclose)
        on_ready(settings.engine.address)
        await stopped.wait()
