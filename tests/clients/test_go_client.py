"""The Go client."""

from __future__ import annotations

from tests.clients.client_tests import ClientTests


class TestGoClient(ClientTests):
    language = "go"
