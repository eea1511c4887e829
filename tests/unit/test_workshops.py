from __future__ import annotations

import pytest

from reasond_server.config.repairs import RepairSettings
from reasond_server.errors import SettingsError
from reasond_server.repair import patches
from reasond_server.workshops import open_workshop


async def test_without_git_no_server_offers_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "_SEARCH_PATH", "/nonexistent")
    with pytest.raises(SettingsError, match="need git"):
        await open_workshop(RepairSettings(enabled=True))
