"""Streams that outlive their connections for a while: numbered events, kept until they expire.

A client that lost its connection asks for what follows the last event that it has. It must not
know: HTTP, what a frame says, who makes it.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing

from rejoinder.errors import ChatError, NotFound, Unavailable

STREAM_BYTES = 1024 * 1024
"""What is kept of one stream. Ahead of its reader it is not made further than that."""

ALL_BYTES = 256 * 1024 * 1024
"""What is kept of all streams; beyond it those that nobody reads go first."""

Running = Callable[[Callable[[ChatError], None]], AbstractContextManager[None]]
"""A context that counts a stream as running; it is given how to end it early."""

ErrorFrames = Callable[[Exception], bytes]


class Streams:
    """The streams of one process. `keep_seconds`: how long one without a reader is kept."""

    def __init__(
        self,
        *,
        keep_seconds: float,
        stream_bytes: int = STREAM_BYTES,
        all_bytes: int = ALL_BYTES,
    ) -> None:
        self._keep_seconds = keep_seconds
        self._stream_bytes = stream_bytes
        self._all_bytes = all_bytes
        self._streams: dict[str, KeptStream] = {}

    def start(
        self,
        account: str,
        frames: AsyncGenerator[bytes, None],
        *,
        error_frames: ErrorFrames,
        running: Running,
    ) -> "KeptStream":
        """Begins to make a stream, whether anybody reads it or not."""
        self._make_room()
        stream = KeptStream(
            account,
            frames,
            error_frames=error_frames,
            most_bytes=self._stream_bytes,
            keep_seconds=self._keep_seconds,
            on_expiry=lambda: self._streams.pop(stream.token, None),
        )
        self._streams[stream.token] = stream
        stream.start(running)
        return stream

    def find(self, account: str, event_id: str) -> "tuple[KeptStream, int]":
        """The stream of an event of this account, and the event's number. Raises NotFound, also
        for what is another account's."""
        token, _, number = event_id.rpartition("-")
        stream = self._streams.get(token)
        known = stream is not None and stream.account == account
        if stream is None or not known or not _is_number(number):
            raise _no_longer_kept()
        return stream, int(number)

    async def close(self) -> None:
        for stream in list(self._streams.values()):
            await stream.close()

    def _make_room(self) -> None:
        size = sum(stream.size for stream in self._streams.values())
        for stream in [one for one in self._streams.values() if not one.is_read]:
            if size <= self._all_bytes:
                return
            size -= stream.size
            stream.expire()


class KeptStream:
    """One stream: its events from the oldest that is kept, and the task that makes more.

    It has one reader at a time; a new one takes over from the last.
    """

    def __init__(
        self,
        account: str,
        frames: AsyncGenerator[bytes, None],
        *,
        error_frames: ErrorFrames,
        most_bytes: int,
        keep_seconds: float,
        on_expiry: Callable[[], object],
    ) -> None:
        self.token = secrets.token_urlsafe(18)
        self.account = account
        self.size = 0
        self._frames = frames
        self._error_frames = error_frames
        self._most_bytes = most_bytes
        self._keep_seconds = keep_seconds
        self._on_expiry = on_expiry
        self._events: list[bytes] = []
        self._first = 1
        """The number of the oldest event that is kept."""
        self._sent = 0
        """The number of the last event that some reader was given."""
        self._error: Exception | None = None
        self._failure: ChatError | None = None
        self._ended = False
        self._begun = asyncio.Event()
        self._room = asyncio.Event()
        self._wake: asyncio.Event | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_read(self) -> bool:
        return self._wake is not None

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._first + len(self._events) - 1

    def start(self, running: Running) -> None:
        self._task = asyncio.create_task(self._make(running))
        self._task.add_done_callback(self._made)

    async def begun(self) -> None:
        """Returns when `frames` has given something, be it empty, or has ended."""
        await self._begun.wait()

    def fail(self, error: ChatError) -> None:
        """Ends the stream from outside, as if `frames` had raised the error."""
        self._failure = error
        if self._task is not None:
            self._task.cancel()

    def expire(self) -> None:
        """Nobody may ask for it any more; what is still being made is not made further."""
        self._on_expiry()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.expire()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def read_after(self, number: int) -> AsyncGenerator[bytes, None]:
        """The events that follow a number, as they come; it is the reader from now on. Raises
        NotFound where they are not kept, or were never made."""
        if not self._first - 1 <= number <= self.last:
            raise _no_longer_kept()
        if self._wake is not None:
            self._wake.set()
        self._wake = mine = asyncio.Event()
        self._expire_later()  # a reader that is closed before its first step never leaves
        return self._read(number, mine)

    def has_all(self, number: int) -> bool:
        """Nothing follows this event."""
        return self._ended and self._error is None and number == self.last

    # ------------------------------------------------------------ reading

    async def _read(self, at: int, mine: asyncio.Event) -> AsyncGenerator[bytes, None]:
        if self._wake is mine and self._expiry is not None:
            self._expiry.cancel()
        try:
            while True:
                mine.clear()
                if self._wake is not mine:
                    raise Unavailable("This stream went on on another connection.")
                news = self._events[at - self._first + 1 :]
                at += len(news)
                if news:
                    self._sent = max(self._sent, at)
                    self._forget()
                    yield b"".join(news)
                elif self._ended:
                    if self._error is not None:
                        raise self._error
                    return
                else:
                    await mine.wait()
        finally:
            self._leave(mine)

    def _leave(self, mine: asyncio.Event) -> None:
        if self._wake is mine:
            self._wake = None
            self._expire_later()

    def _expire_later(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self._keep_seconds, self.expire)

    # ------------------------------------------------------------ making

    async def _make(self, running: Running) -> None:
        with running(self.fail):
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    self._add(frame)
                    while self.size > self._most_bytes:
                        self._room.clear()
                        await self._room.wait()

    def _made(self, task: "asyncio.Task[None]") -> None:
        """The task has ended, however that came."""
        error = self._failure if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)
        self._ended = True
        self._tell()

    def _add(self, frame: bytes) -> None:
        for event in events_in(frame):
            line = f"id: {self.token}-{self.last + 1}\n".encode()
            self._events.append(line + event)
            self.size += len(line) + len(event)
        self._forget()
        self._tell()

    def _fail(self, error: Exception) -> None:
        """An error after the first event is events too; before it, it is whoever reads."""
        if self.last:
            self._add(self._error_frames(error))
        else:
            self._error = error

    def _tell(self) -> None:
        self._begun.set()
        if self._wake is not None:
            self._wake.set()

    def _forget(self) -> None:
        """Drops the oldest events that a reader has had, where there is too much."""
        num = 0
        while self.size > self._most_bytes and self._first + num <= self._sent:
            self.size -= len(self._events[num])
            num += 1
        del self._events[:num]
        self._first += num
        if self.size <= self._most_bytes:
            self._room.set()


def events_in(frame: bytes) -> Iterator[bytes]:
    """The events of a frame, each with its empty line. Comments are none of them."""
    for event in frame.split(b"\n\n"):
        if event and not event.startswith(b":"):
            yield event + b"\n\n"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def _no_longer_kept() -> NotFound:
    return NotFound(
        "No stream with this Last-Event-ID is kept (any more). Please send the request again "
        "without it.",
        code="stream_not_found",
    )
