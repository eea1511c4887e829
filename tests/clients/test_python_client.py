"""The Python client."""

from __future__ import annotations

from tests.clients.client_tests import ClientTests


class TestPythonClient(ClientTests):
    language = "python"
