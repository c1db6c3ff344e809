"""Server-sent events: frames out, and an incremental reader of whatever real servers send in.

Sans-IO: bytes in, bytes or the data of complete events out. This module must not know: JSON,
chunks, dialects, sockets.
"""

from rejoinder.errors import ProviderFailed

__all__ = ["DONE", "DONE_DATA", "KEEPALIVE", "MAX_EVENT_BYTES", "SseReader", "comment", "frame"]

DONE_DATA = "[DONE]"
"""The data of the event that ends every stream (R7)."""

DONE = b"data: [DONE]\n\n"

KEEPALIVE = b": keep-alive\n\n"
"""A comment: the only legal sign of life between events (R8)."""

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""More than any honest event; a peer that sends more is cut off."""

_BOM = b"\xef\xbb\xbf"


def frame(payload: bytes) -> bytes:
    """One event. `payload` is JSON on one line: it must have no line end in it (R4, R5)."""
    return b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """A comment event; line ends in `text` become spaces."""
    return b": " + " ".join(text.splitlines()).encode() + b"\n\n"


class SseReader:
    """Bytes of one response body → the data of its events, as text.

    Any split of the bytes gives the same events; the work is linear in the bytes. Read are: LF,
    CR and CRLF line ends, also mixed and split over reads; a byte order mark; comments; fields
    other than data (ignored); `data:` without the space; several data lines (joined by LF); bytes
    that are not UTF-8 (U+FFFD each). Nothing but CR and LF ends a line: U+2028, U+0085 and
    vertical tabs inside a JSON string do not. An event whose data is empty is given as "".
    """

    __slots__ = ("_after_cr", "_head", "_max_event_bytes", "_started", "_tail")

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._tail = bytearray()
        """The bytes of the event that is not complete, line ends already LF."""
        self._head = b""
        """What may become a byte order mark."""
        self._started = False
        self._after_cr = False

    def feed(self, data: bytes) -> list[str]:
        """The data of the events that `data` completes; ProviderFailed if one is too long."""
        if not self._started:
            data = self._strip_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:
                data = data[1:]
        if b"\r" in data:
            # A CR ends the line now, without waiting for an LF that may never come.
            self._after_cr = data[-1] == 0x0D
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        blocks = self._complete(data)
        if not blocks:
            return []
        events: list[str] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:].decode("utf-8", "replace"))
            elif (event := _data_of(block)) is not None:
                events.append(event)
        return events

    def flush(self) -> list[str]:
        """The last event of a body that ends without its blank line, if there is one.

        Its data may be cut short; whoever parses it sees that.
        """
        last = _data_of(bytes(self._tail))
        self._tail.clear()
        return [] if last is None else [last]

    def _complete(self, data: bytes) -> list[bytes]:
        """The lines of each event that `data` completes; the rest is kept."""
        tail = self._tail
        if tail:
            seen = len(tail)
            tail += data
            if tail.find(b"\n\n", seen - 1) < 0:
                if len(tail) > self._max_event_bytes:
                    raise self._too_long()
                return []
            data = bytes(tail)
            tail.clear()
        blocks = data.split(b"\n\n")
        tail += blocks.pop()
        if len(data) > self._max_event_bytes and (
            max(map(len, (*blocks, tail))) > self._max_event_bytes
        ):
            raise self._too_long()
        return blocks

    def _strip_bom(self, data: bytes) -> bytes:
        data = self._head + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._head = data
            return b""
        self._head = b""
        self._started = True
        return data.removeprefix(_BOM)

    def _too_long(self) -> ProviderFailed:
        return ProviderFailed(
            f"The upstream server sent an event longer than {self._max_event_bytes} bytes."
        )


def _data_of(block: bytes) -> str | None:
    """The data lines of one event's lines, joined; None when there is no data field."""
    lines: list[bytes] = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b" ", 5) else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines).decode("utf-8", "replace") if lines else None
