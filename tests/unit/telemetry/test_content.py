from reasond_server.telemetry.content import MAX_CHARACTERS, shortened


def test_a_text_is_cut_and_its_secrets_are_hidden() -> None:
    assert shortened("short") == "short"
    assert shortened("x" * 5000) == "x" * MAX_CHARACTERS + " …"
    assert "hunter2" not in shortened("Bearer hunter2hunter2")
    shortened("\ud800").encode("utf-8")
