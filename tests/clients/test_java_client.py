"""The Java client."""

from __future__ import annotations

from tests.clients.client_tests import ClientTests


class TestJavaClient(ClientTests):
    language = "java"
