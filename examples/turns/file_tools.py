"""A model reads and writes files of one folder on this machine: `python file_tools.py FOLDER "Read the file ..."`.

The functions run here, not on the server, and see nothing outside the folder.
"""

import sys
from pathlib import Path

import reasond

_FOLDER = Path()
_MOST_BYTES = 1_000_000


@reasond.client_tool
def list_files() -> list[str]:
    """Lists the files of the folder."""
    return sorted(str(each.relative_to(_FOLDER)) for each in _FOLDER.rglob("*") if each.is_file())


@reasond.client_tool
def read_file(path: str) -> str:
    """Reads a text file of the folder.

    Args:
        path: The file, relative to the folder.
    """
    place = _place_of(path)
    if place.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES} bytes")
    return place.read_text("utf-8")


@reasond.client_tool
def write_file(path: str, text: str, idempotency_key: str) -> dict[str, int]:
    """Writes a text file of the folder, in place of the one that is there.

    Args:
        path: The file, relative to the folder.
        text: Its whole content.
        idempotency_key: Not shown to the model: the same whenever this call is made again.
    """
    place = _place_of(path)
    # Whoever dies before the result has arrived writes again with the same key,
    # and the file is replaced in one step: twice does no more than once.
    draft = place.with_name(f".{idempotency_key[:16]}")
    draft.write_text(text, "utf-8")
    draft.replace(place)
    return {"characters": len(text)}


def _place_of(path: str) -> Path:
    place = (_FOLDER / path).resolve()
    if not place.is_relative_to(_FOLDER):
        raise ValueError(f"{path} is outside the folder")
    return place


def main() -> None:
    global _FOLDER  # noqa: PLW0603 - the one setting of this program
    _FOLDER = Path(sys.argv[1]).resolve()
    with reasond.Client.from_env() as client:
        result = client.turn(sys.argv[2], tools=[list_files, read_file, write_file])
    print(result.answer)


if __name__ == "__main__":
    main()
