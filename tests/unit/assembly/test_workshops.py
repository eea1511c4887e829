from __future__ import annotations

import pytest

from reasond_server.assembly.workshops import open_workshop
from reasond_server.config.repairs import RepairSettings
from reasond_server.errors.base import SettingsError
from reasond_server.repair.edits import patches


async def test_without_git_no_server_offers_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "_SEARCH_PATH", "/nonexistent")
    with pytest.raises(SettingsError, match="need git"):
        await open_workshop(RepairSettings(enabled=True))
