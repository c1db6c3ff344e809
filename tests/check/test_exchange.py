"""Frames: found where they are in the body, with the data that the service's own reader reads."""

from hypothesis import example, given
from hypothesis import strategies as st

from rejoinder.check.exchange import Exchange, Request, Response, split_frames
from rejoinder.dialects.sse import SseReader

LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b": c", b"event: d", b"", b"", b"", b"data:  e", b"id"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n"])


def whole(body: bytes) -> list[str]:
    reader = SseReader()
    return [*reader.feed(body), *reader.flush()]


@given(st.lists(st.tuples(LINES, ENDS), max_size=12))
@example([(b"data: a", b"\r"), (b"", b"\r\n"), (b"data: b", b"\n"), (b"", b"\n")])
@example([(b"", b"\n"), (b"data: a", b"\n"), (b"", b"\n")])
def test_frames_are_those_of_the_reader(lines: list[tuple[bytes, bytes]]) -> None:
    body = b"".join(line + end for line, end in lines)
    frames = list(split_frames(body))
    assert [f.data for f in frames if f.data is not None] == whole(body)
    for number, frame in enumerate(frames):
        assert frame.number == number
        assert body[frame.offset : frame.offset + len(frame.raw)] == frame.raw


def test_byte_order_mark_is_no_data() -> None:
    (frame,) = split_frames(b"\xef\xbb\xbfdata: 1\n\n")
    assert (frame.offset, frame.data, frame.json) == (3, "1", 1)


def test_curl_repeats_the_request_without_its_secrets() -> None:
    x = Exchange(
        probe="p",
        dialect="O",
        request=Request(
            url="http://h/v1/chat/completions",
            headers=(("Authorization", "Bearer sk-secret"), ("X-Note", "it's")),
            body=b'{"a": "b\'c"}',
        ),
        response=Response(),
    )
    assert "secret" not in x.curl()
    assert "'X-Note: it'\"'\"'s'" in x.curl()
    assert x.curl().endswith("""--data-binary '{"a": "b'"'"'c"}'""")
