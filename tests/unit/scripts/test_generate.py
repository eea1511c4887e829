from __future__ import annotations

from scripts.generate import BANNER, DESCRIPTORS, compare, list_committed


def test_committed_files_equal_themselves() -> None:
    assert compare({path: path.read_bytes() for path in list_committed()}) == []


def test_one_changed_byte_is_found_and_shown() -> None:
    files = {path: path.read_bytes() for path in list_committed()}
    stub = next(path for path in files if path.suffix == ".py")
    files[stub] += b"#"
    [line] = compare(files)
    assert stub.name in line
    assert "differs" in line


def test_a_stub_that_is_no_longer_generated_is_found() -> None:
    files = {path: path.read_bytes() for path in list_committed()}
    gone = next(path for path in files if path != DESCRIPTORS)
    del files[gone]
    [line] = compare(files)
    assert line.endswith("no longer generated")


def test_every_stub_says_that_it_is_generated() -> None:
    stubs = [path for path in list_committed() if path.suffix.startswith(".py")]
    assert len(stubs) > 1
    assert all(path.read_text("utf-8").startswith(BANNER) for path in stubs)
