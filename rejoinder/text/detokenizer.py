"""Token bytes → text, incrementally: no half character ever leaves, no byte is lost.

Each maximal sequence of bytes that cannot be UTF-8 is one U+FFFD; its neighbours stay (R3, R116).
This module must not know: tokens' ids, stop strings, formats.
"""

from codecs import utf_8_decode


class Detokenizer:
    """One sequence's decoder: `feed` the bytes of each token, `flush` at the end."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    @property
    def is_mid_character(self) -> bool:
        """Whether bytes of an unfinished character are waiting."""
        return bool(self._pending)

    def breaks_off(self, data: bytes) -> bool:
        """Whether `data` cannot go on with the unfinished character, which then is one U+FFFD."""
        if not self._pending:
            return False
        try:
            utf_8_decode(self._pending + data[:1], "strict", False)
        except UnicodeDecodeError:
            return True
        return False

    def feed(self, data: bytes) -> str:
        """The characters that `data` completes."""
        if self._pending:
            data = self._pending + data
        elif data.isascii():
            return data.decode("ascii")
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        """An unfinished character at the end of the answer is one U+FFFD."""
        if not self._pending:
            return ""
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text
