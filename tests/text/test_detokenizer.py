"""Bytes in any pieces → the text that the whole decodes to, never half a character."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.text.detokenizer import Detokenizer

texts = st.text(alphabet="aé€😊\ufffd\n", max_size=12)
raws = st.lists(
    texts.map(str.encode)
    | st.binary(max_size=4)
    | st.sampled_from([b"\xf0\x9f", b"\xff", b"\xe2"]),
    max_size=6,
).map(b"".join)


def oracle(data: bytes) -> str:
    """Maximal bad sequences by the definition: what no character begins with is cut one by one."""
    out, at = [], 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                out.append(data[at : at + size].decode())
                at += size
                break
            except UnicodeDecodeError:
                continue
        else:
            size = max([n for n in (1, 2, 3) if _begins_a_character(data[at : at + n])], default=1)
            out.append("\ufffd")
            at += size
    return "".join(out)


def _begins_a_character(data: bytes) -> bool:
    tails = (b"", b"\x80", b"\x80\x80", b"\xbf", b"\xbf\xbf", b"\x90\x80", b"\xa0\x80", b"\x8f\xbf")
    tails += (b"\xa0", b"\x90", b"\x9f\x80", b"\x9f", b"\x90\x80\x80", b"\x80\x80\x80")
    for tail in tails:
        try:
            if len((data + tail).decode()) == 1:
                return True
        except UnicodeDecodeError:
            continue
    return False


@given(data=raws, sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_any_pieces_give_the_text_of_the_whole(data: bytes, sizes: list[int]) -> None:
    detokenizer = Detokenizer()
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(detokenizer.feed(data[at : at + size]))
        at, turn = at + size, turn + 1
    pieces.append(detokenizer.flush())
    assert "".join(pieces) == oracle(data)
    assert not detokenizer.is_mid_character


def test_a_character_leaves_whole_and_at_once() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.feed(bytes([b])) for b in "é😊".encode()] == ["", "é", "", "", "", "😊"]
    assert detokenizer.flush() == ""


def test_bad_bytes_keep_their_neighbours() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"a\xff") + detokenizer.feed(b"b") == "a\ufffdb"
    assert detokenizer.feed(b"\xf0\x9f") == ""
    assert detokenizer.feed(b"c") == "\ufffdc"
    assert detokenizer.feed(b"\xf0") + detokenizer.flush() == "\ufffd"
