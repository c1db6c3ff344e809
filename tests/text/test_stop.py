"""Stop strings in any pieces: what a look at each whole prefix of the text would say."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.text.stop import StopMatcher


def oracle(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The shortest prefix that ends with a stop string is where the answer stops."""
    for end in range(1, len(text) + 1):
        found = [len(s) for s in stop if s and text[:end].endswith(s)]
        if found:
            return text[: end - max(found)], True
    return text, False


@given(
    text=st.text(alphabet="abé", max_size=20),
    stop=st.lists(st.text(alphabet="abé", max_size=6), max_size=4).map(tuple),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_any_pieces(text: str, stop: tuple[str, ...], sizes: list[int]) -> None:
    matcher = StopMatcher(stop)
    shown, at, turn = "", 0, 0
    while at < len(text) and not matcher.stopped:
        size = sizes[turn % len(sizes)]
        shown += matcher.feed(text[at : at + size])
        at, turn = at + size, turn + 1
        whole, stopped = oracle(text, stop)
        assert whole.startswith(shown)  # no part of a stop string has leaked
        if not matcher.stopped and not stopped:
            longest = max((_overlap(text[:at], s) for s in stop), default=0)
            assert len(shown) == min(at, len(text)) - longest  # no more is held than needed
    if not matcher.stopped:
        shown += matcher.flush()
    assert (shown, matcher.stopped) == oracle(text, stop)


def _overlap(text: str, stop: str) -> int:
    return max((n for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


def test_of_two_that_end_together_the_longer_wins() -> None:
    for stop in (("b", "ab"), ("ab", "b")):
        assert StopMatcher(stop).feed("xab") == "x"


def test_after_a_match_nothing_leaves() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.feed("aENDb") == "a"
    assert matcher.stopped
    assert matcher.feed("c") == ""


def test_flush_starts_anew() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.feed("aEN") == "a"
    assert matcher.flush() == "EN"
    assert matcher.feed("D") == "D"
    assert not matcher.stopped


def test_a_hostile_stop_string_costs_linear_time() -> None:
    matcher = StopMatcher(("a" * 1_000_000 + "b", "ab" * 1000 + "c"))
    for _ in range(20_000):
        matcher.feed("aaaa")
    assert matcher.num_held == 80_000
