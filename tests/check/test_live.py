"""The checks inside the service: silent on good streams, loud on each kind of break, cheap."""

import itertools
import json

import pytest

from rejoinder.check.exchange import DialectName
from rejoinder.check.live import MAX_SAMPLE_BYTES, LiveCheck, Sample, check_sample
from tests.check.evidence import ideal_evidence
from tests.check.ideal import Answer, sse

NAMES: dict[DialectName, str] = {"O": "openai", "D": "deepinfra"}


def compact(payload: object) -> bytes:
    """A frame as the service writes it."""
    if isinstance(payload, str):
        return sse(payload)
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def answer(dialect: DialectName, **asked: object) -> list[bytes]:
    request = {"messages": [], "stream": True, **asked}
    return [compact(payload) for payload in Answer(dialect, request, "chatcmpl-1").frames()]


def broken(check: LiveCheck, frames: list[bytes]) -> list[str]:
    return [*itertools.chain.from_iterable(check.feed(f) for f in frames), *check.close()]


@pytest.mark.parametrize("dialect", ["O", "D"])
def test_good_streams_are_silent(dialect: DialectName) -> None:
    frames = answer(dialect, n=2, logprobs=True)
    assert broken(LiveCheck(NAMES[dialect]), frames) == []
    kept_alive = [b": keep-alive\n\n", *frames[:2], b": keep-alive\n\n", *frames[2:]]
    assert broken(LiveCheck(NAMES[dialect]), kept_alive) == []
    joined = [b"".join(frames[:3]), b"", b"".join(frames[3:])]
    assert broken(LiveCheck(NAMES[dialect]), joined) == []
    error = compact({"error": {"message": "x", "type": "server_error"}})
    assert broken(LiveCheck(NAMES[dialect]), [*frames[:2], error, frames[-1]]) == []


BREAKS = {
    "R4": lambda f: [*f[:2], f[2][:-1], *f[3:]],
    "R5": lambda f: [*f[:2], f[2].replace(b',"choices"', b',\n"choices"'), *f[3:]],
    "R7": lambda f: [*f, f[1]],
    "R90": lambda f: [*f[:2], f[2].replace(b"choices", b"chioces"), *f[3:]],
    "R95": lambda f: [*f[:2], f[2].replace(b"chatcmpl-1", b"chatcmpl-2"), *f[3:]],
}


@pytest.mark.parametrize("rule", BREAKS)
@pytest.mark.parametrize("dialect", ["O", "D"])
def test_breaks_are_reported_once(rule: str, dialect: DialectName) -> None:
    frames = BREAKS[rule](answer(dialect))
    assert broken(LiveCheck(NAMES[dialect]), frames) == [rule]


def test_missing_end_is_reported_unless_the_client_left() -> None:
    frames = answer("O")[:-1]
    assert broken(LiveCheck("openai"), frames) == ["R7"]
    check = LiveCheck("openai")
    for frame in frames:
        check.feed(frame)
    assert check.close(failed_early=True) == ()


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (rb'{"content":null}', ["R89"]),
        (rb'{"content":"a\":null"}', []),
        (rb'{"content":"a\\","refusal":null}', ["R89"]),
        (rb'{"content":": null"}', []),
        (rb'{"content":":null}"}', []),  # a text may begin like this
        (rb'{"content":[":null",":null"]}', []),
    ],
)
def test_null_is_seen_only_outside_strings(text: bytes, rules: list[str]) -> None:
    frames = answer("D")
    frames[3] = frames[3].partition(b'"delta":')[0] + b'"delta":' + text + b"}]}\n\n"
    assert broken(LiveCheck("deepinfra"), frames) == rules
    frames = answer("D")
    frames[0] = frames[0].partition(b'"delta":')[0] + b'"delta":' + text + b"}]}\n\n"
    assert broken(LiveCheck("deepinfra"), frames) == rules


@pytest.mark.parametrize("dialect", ["O", "D"])
def test_samples_are_judged_by_all_rules(dialect: DialectName) -> None:
    for name, x in ideal_evidence(dialect).items():
        if not x.is_answer:
            continue
        sample = Sample()
        for start in range(0, len(x.response.body), 300):
            sample.add(x.response.body[start : start + 300], start / 1e6)
        found = check_sample(
            sample,
            dialect=NAMES[dialect],
            request=x.request.body,
            status=200,
            headers=dict(x.response.headers),
            path=x.request.url,
        )
        assert found == [], name


def test_broken_sample_is_reported() -> None:
    x = ideal_evidence("O")["stream"]
    sample = Sample()
    sample.add(x.response.body.replace(b'"role": "assistant"', b'"role": "user"'), 0.1)
    (finding,) = check_sample(
        sample,
        dialect="openai",
        request=x.request.body,
        status=200,
        headers=dict(x.response.headers),
        path=x.request.url,
    )
    assert finding.rule == "R102"


def test_long_answers_are_not_kept() -> None:
    sample = Sample()
    sample.add(b"x" * (MAX_SAMPLE_BYTES + 1), 0.0)
    sample.add(b"y", 0.0)
    assert sample.too_long
    assert (
        check_sample(sample, dialect="openai", request=b"{}", status=200, headers={}, path="/")
        == []
    )
