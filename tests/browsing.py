"""A real browser for tests: Debian's Chromium, driven by Playwright, in its form without windows where there is one.

A test without Chromium is skipped with a message, and fails in CI. Each page comes with a `Watch`, which notes what the
browser complains about: violations of the Content-Security-Policy, errors of scripts, and requests to other hosts.
"""

from __future__ import annotations

import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.async_api import async_playwright

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from playwright.async_api import Browser, ConsoleMessage, Page, Request

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LIMIT_MS = 60_000
"""A generous limit of waits: the machine may be busy."""

# As root, Chromium starts only without its sandbox; it loads nothing but pages of the tests' own servers.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb")


@dataclass
class Watch:
    """What a page complained about, and which other hosts it asked."""

    home: str
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def note_message(self, message: ConsoleMessage) -> None:
        """Note a violation of the Content-Security-Policy; refused calls are no complaint."""
        if "Content Security Policy" in message.text or "TrustedHTML" in message.text:
            self.complaints.append(message.text)

    def note_request(self, request: Request) -> None:
        """Note a request to another host."""
        if urlsplit(request.url).netloc != self.home:
            self.foreign.append(request.url)

    def note_error(self, error: Exception) -> None:
        """Note an error that no script caught."""
        self.complaints.append(str(error))


def find_chromium() -> str:
    """Return the path of Chromium; without it skip the test, or fail it in CI."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            return found
    message = "Chromium is not installed here; `python -m scripts.programs debian:chromium-headless-shell` installs it"
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(message)
    pytest.skip(message)


@asynccontextmanager
async def running_browser() -> AsyncGenerator[Browser, None]:
    """Run a browser without a window inside the context."""
    program = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS), timeout=LIMIT_MS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def new_page(
    browser: Browser, home: str, *, width: int = 1280, height: int = 800, is_dark: bool = False
) -> AsyncGenerator[tuple[Page, Watch], None]:
    """Open a page of a session of its own, and close it after the context.

    `home` is the URL whose host the page may ask.
    """
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if is_dark else "light",
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(LIMIT_MS)
    watch = Watch(home=urlsplit(home).netloc)
    try:
        page = await context.new_page()
        page.on("console", watch.note_message)
        page.on("pageerror", watch.note_error)
        page.on("request", watch.note_request)
        yield page, watch
    finally:
        await context.close()
