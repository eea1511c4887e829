"""The embedded demo model: computes and extracts by fixed rules; understands nothing and says so."""

from reasond_server.llm.demo.model import DemoModel

__all__ = ["DemoModel"]
