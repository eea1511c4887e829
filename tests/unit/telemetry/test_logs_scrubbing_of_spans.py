from reasond_server.telemetry.logs import MAX_SPAN_CHARACTERS, shorten


def test_a_text_is_cut_and_its_secrets_are_hidden() -> None:
    assert shorten("short") == "short"
    assert shorten("x" * 5000) == "x" * MAX_SPAN_CHARACTERS + " …"
    assert "hunter2" not in shorten("Bearer hunter2hunter2")
    shorten("\ud800").encode("utf-8")
