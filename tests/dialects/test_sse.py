"""The SSE reader: any split of the bytes gives the same events; it is linear and bounded."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.dialects import sse
from rejoinder.dialects.sse import SseReader
from rejoinder.errors import ProviderFailed


def read(*parts: bytes, max_event_bytes: int = sse.MAX_EVENT_BYTES) -> list[str]:
    reader = SseReader(max_event_bytes=max_event_bytes)
    events = [event for part in parts for event in reader.feed(part)]
    return events + reader.flush()


def oracle(body: bytes, *, ended: bool = True) -> list[str]:
    """The specification's own algorithm over the whole body, line by line.

    `ended`: the body has come to its end, so the last line counts, and the last event.
    """
    text = body.removeprefix(b"\xef\xbb\xbf")
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[str] = []
    data: list[bytes] | None = None
    for line in [*lines, b""] if ended else lines[:-1]:
        if not line:
            if data is not None:
                events.append(b"\n".join(data).decode("utf-8", "replace"))
            data = None
            continue
        field, _, value = line.partition(b":")
        if field == b"data":
            data = [*(data or []), value.removeprefix(b" ")]
    return events


@pytest.mark.parametrize(
    ("parts", "events"),
    [
        ([b"data: a\n\n"], ["a"]),
        ([b"data: a\r\n\r\ndata: b\r\n\r\n"], ["a", "b"]),
        ([b"data: a\r\rdata: b\r\r"], ["a", "b"]),
        ([b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n"], ["a", "b"]),
        ([b"data: a\r\n\r\n", b"data: b\n\n", b"data: c\r\r"], ["a", "b", "c"]),
        ([b"data: a\n\r\n"], ["a"]),
        ([b"data: a\r\n\n"], ["a"]),
        ([b"\xef", b"\xbb", b"\xbfdata: a\n\n"], ["a"]),
        ([b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n"], ["a", "\ufeffb"]),
        ([b"\xef\xbbdata: a\n\ndata: b\n\n"], ["b"]),
        ([b": comment\n\n:\n\n:\ndata: a\n\n"], ["a"]),
        ([b"data:a\n\n"], ["a"]),
        ([b"data:  a\n\n"], [" a"]),
        ([b"data\n\n"], [""]),
        ([b"data:\n\n"], [""]),
        ([b"data: : keepalive\n\n"], [": keepalive"]),
        ([b"event: ping\n\nevent: x\ndata: {}\nid: 1\nretry: 5\n\n"], ["{}"]),
        ([b"datax: a\n\ndata : b\n\n Data: c\n\n"], []),
        ([b"data: a\ndata: b\ndata:\n\n"], ["a\nb\n"]),
        ([b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n"], ["a", "b"]),
        (
            ["data: a\u2028b\u2029c\u0085d\x0b\x0c\x1c\n\n".encode()],
            ["a\u2028b\u2029c\u0085d\x0b\x0c\x1c"],
        ),
        ([b"data: \xf0\x9f", b"\x98\x8a\n\n"], ["😊"]),
        ([b"data: a\xffb\n\n"], ["a\ufffdb"]),
        ([b"data: a\n\ndata: [DONE]"], ["a", "[DONE]"]),
        ([b"data: a\n\ndata: [DONE]\n"], ["a", "[DONE]"]),
        ([b'data: a\n\ndata: {"id'], ["a", '{"id']),
        ([b"", b"data: a", b"", b"\n", b"", b"\n"], ["a"]),
        ([b"data: a\r", b"", b"\n\r\n"], ["a"]),
        ([b"data: a\r", b"\ndata: b\r", b"", b"\ndata: c\r\n\r\n"], ["a\nb\nc"]),
        ([b"data: a\xff\ndata: b\n\n"], ["a\ufffd\nb"]),
        ([], []),
        ([b"\xef\xbb"], []),
    ],
)
def test_reads_what_servers_send(parts: list[bytes], events: list[str]) -> None:
    assert read(*parts) == events
    assert oracle(b"".join(parts)) == events


def test_a_carriage_return_ends_an_event_at_once() -> None:
    reader = SseReader()
    assert reader.feed(b"data: a\r\r") == ["a"]
    assert reader.feed(b"\ndata: b\r\n\r") == ["b"]


LINES = st.sampled_from(
    [b"data: x", b"data:", b"data", b"data:y", b": c", b":", b"event: e", b"", b"\xef\xbb\xbf"]
) | st.binary(max_size=6)
BODIES = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=12).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@given(body=BODIES, last=LINES, cuts=st.lists(st.integers(0, 80), max_size=6))
def test_any_split_gives_the_same_events(body: bytes, last: bytes, cuts: list[int]) -> None:
    body += last
    expected = oracle(body)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert read(body) == expected
    assert read(*(body[a:b] for a, b in itertools.pairwise(edges))) == expected
    assert read(*(body[i : i + 1] for i in range(len(body)))) == expected


@given(body=BODIES)
def test_an_event_is_given_as_soon_as_it_is_complete(body: bytes) -> None:
    reader = SseReader()
    events: list[str] = []
    for i in range(len(body)):
        events += reader.feed(body[i : i + 1])
        if body[: i + 1] not in (b"\xef", b"\xef\xbb"):
            assert events == oracle(body[: i + 1], ended=False)


@pytest.mark.parametrize("newlines", [False, True])
def test_one_byte_at_a_time_is_linear(newlines: bool) -> None:
    line = b"data: " + b"x" * 94 + b"\n"
    body = line * 3_000 if newlines else b"data: " + b"x" * 300_000

    def seconds(size: int) -> float:
        reader = SseReader()
        started = time.process_time()
        for i in range(size):
            reader.feed(body[i : i + 1])
        return time.process_time() - started

    small = min(seconds(30_000) for _ in range(3))
    assert seconds(300_000) < 40 * small


@pytest.mark.parametrize(
    "parts",
    [
        [b"data: " + b"x" * 100],
        [b"data: " + b"x" * 100 + b"\n\n"],
        [b"data: a\n\ndata: " + b"x" * 100],
        [b"x"] * 101,
        [b": c\n"] * 30,
    ],
)
def test_an_event_too_long_is_the_upstream_s_fault(parts: list[bytes]) -> None:
    with pytest.raises(ProviderFailed, match="longer than 100 bytes"):
        read(*parts, max_event_bytes=100)


def test_many_events_in_one_read_are_not_too_long() -> None:
    assert len(read(b"data: x\n\n" * 50, max_event_bytes=100)) == 50


@given(st.lists(st.text().filter(lambda t: not set("\r\n") & set(t)), max_size=5))
def test_frames_are_read_back(payloads: list[str]) -> None:
    body = b"".join(sse.frame(p.encode()) + sse.KEEPALIVE + sse.comment(p) for p in payloads)
    assert read(body + sse.DONE) == [*payloads, sse.DONE_DATA]


def test_a_comment_is_one_line() -> None:
    assert sse.comment("a\r\nb\u2028data: x\n\n") == b": a b data: x \n\n"
