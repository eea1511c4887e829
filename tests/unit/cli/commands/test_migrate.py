from pathlib import Path

import pytest

from reasond_server.cli.commands.doctor import examine
from reasond_server.cli.commands.migrate import migrate
from reasond_server.errors.base import SettingsError

NO_FILE = Path("/dev/null")
FREE = {"REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0", "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0"}


def test_migrating_makes_the_file_and_can_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"REASOND__STORE__DATA_DIR": str(tmp_path / "data")}
    for _ in range(2):
        assert migrate(NO_FILE, environ=environ) == 0
        assert capsys.readouterr().out == f"{tmp_path}/data/reasond.db has the schema of this release\n"


def test_migrating_memory_says_that_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate(NO_FILE, environ={"REASOND__STORE__URL": "memory:"}) == 0
    assert "no schema" in capsys.readouterr().out


def test_a_database_that_does_not_answer_is_refused_without_its_password() -> None:
    url = "postgresql://ann:s3cret@127.0.0.1:1/mine"
    with pytest.raises(SettingsError, match=r"'mine at 127\.0\.0\.1' cannot be reached") as caught:
        migrate(NO_FILE, environ={"REASOND__STORE__URL": url})
    assert "s3cret" not in caught.value.full_message


def test_doctor_says_where_the_store_is_and_fails_where_it_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = FREE | {"REASOND__STORE__DATA_DIR": str(tmp_path)}
    assert examine(NO_FILE, environ=environ) == 0
    assert f"ok    store         SQLite, {tmp_path}/reasond.db (made at the first start)" in capsys.readouterr().out
    (tmp_path / "reasond.db").write_bytes(b"a letter to my aunt " * 500)
    assert examine(NO_FILE, environ=environ) == 1
    assert "fail  store" in capsys.readouterr().out
