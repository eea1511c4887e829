"""The text of an answer while it is written: what can be sent of it before its step is logged."""

from __future__ import annotations

from reasond_server.errors.executions import CursorExpiredError


class LiveAnswer:
    """The answer that is being written: white space that may be its end is held back."""

    def __init__(self, edition: int) -> None:
        self.edition = edition
        self._told: list[str] = []
        self._held = ""
        self._at = 0

    @property
    def has_begun(self) -> bool:
        """Whether some of it was sent."""
        return bool(self._told)

    @property
    def written(self) -> str:
        """What was sent."""
        return "".join(self._told)

    def add(self, text: str, at: int) -> str:
        """Return what can be sent now that the text after the character `at` came; nothing after a gap."""
        if at != self._at:
            return ""
        self._at += len(text)
        text = self._held + text if self._told else text.lstrip()
        certain = text.rstrip()
        self._held = text[len(certain) :]
        if certain:
            self._told.append(certain)
        return certain

    def rest(self, text: str) -> str:
        """Return what was not sent yet of the whole `text`, which begins with what was."""
        return text[sum(map(len, self._told)) :]


def build_lost_error() -> CursorExpiredError:
    """Return the error for a client that has text of another edition (`AnswerPlace`)."""
    return CursorExpiredError(
        "The text that was told of the answer does not count any more: the process that wrote it was lost, or the "
        "model took it back",
        remedy="Read the response again from its start.",
    )
