"""The rules inside the service: cheap ones on every frame that leaves, all of them on a sample.

`LiveCheck` compares bytes and parses nothing; the order of events is `EventGrammar`'s. Pure. This
module must not know: events, HTTP, metrics.
"""

from collections.abc import Mapping

from rejoinder.check.exchange import (
    DIALECT_NAMES,
    DialectName,
    Exchange,
    Headers,
    Read,
    Request,
    Response,
)
from rejoinder.check.judge import Finding, judge
from rejoinder.check.rule import Evidence, Rule
from rejoinder.check.rules import RULES

__all__ = ["MAX_SAMPLE_BYTES", "LiveCheck", "Sample", "check_sample"]

MAX_SAMPLE_BYTES = 4 * 1024 * 1024
"""A longer answer is not sampled."""

_CHOICES = b',"choices":'
_DONE = b"data: [DONE]\n\n"


class LiveCheck:
    """One stream of ours, frame by frame: `feed` what is sent, `close` at its end.

    Both give the rules that were broken, each once. A break is a bug of ours: to be counted and
    logged by rule. Looked at: one data line an event (R4, R5), the same head in every chunk (R94
    … R98), nothing after [DONE] (R7), and in DeepInfra's dialect no null (R89).
    """

    __slots__ = ("_broken", "_done", "_head", "_nulls_allowed")

    def __init__(self, dialect: str) -> None:
        self._nulls_allowed = DIALECT_NAMES[dialect] == "O"
        self._head = b""
        self._done = False
        self._broken: tuple[str, ...] = ()

    def feed(self, frames: bytes) -> tuple[str, ...]:
        """`frames`: one or more whole events as they are sent; comments may be among them."""
        if not frames:
            return ()
        if self._done:
            return self._report("R7")
        head = self._head
        if head and frames.startswith(head) and frames.find(b"\n") == len(frames) - 2:
            # One event with the known head: nearly every call.
            if frames[-1] != 0x0A:
                return self._report("R4")
            if not self._nulls_allowed and b":null" in frames and _has_null(frames):
                return self._report("R89")
            return ()
        return self._feed_slowly(frames)

    def close(self, *, failed_early: bool = False) -> tuple[str, ...]:
        """The stream has ended; `failed_early`: the connection was lost, so that it may be cut."""
        return () if self._done or failed_early else self._report("R7")

    def _feed_slowly(self, frames: bytes) -> tuple[str, ...]:
        broken: tuple[str, ...] = ()
        if not frames.endswith(b"\n\n"):
            return self._report("R4")
        for event in frames.removesuffix(b"\n\n").split(b"\n\n"):
            broken += self._feed_event(event)
        return broken

    def _feed_event(self, event: bytes) -> tuple[str, ...]:
        if event.startswith(b":"):
            return ()
        if self._done:
            return self._report("R7")
        if not event.startswith(b"data: "):
            return self._report("R4")
        if b"\n" in event or b"\r" in event:
            return self._report("R5")
        if event == _DONE[:-2]:
            self._done = True
            return ()
        if event.startswith(b'data: {"error":'):
            return ()
        head, found, _ = event.partition(_CHOICES)
        if not found:
            return self._report("R90")
        if not self._head:
            self._head = head + found
        elif head + found != self._head:
            return self._report("R95")
        if not self._nulls_allowed and _has_null(event):
            return self._report("R89")
        return ()

    def _report(self, rule: str) -> tuple[str, ...]:
        if rule in self._broken:
            return ()
        self._broken = (*self._broken, rule)
        return (rule,)


def _has_null(event: bytes) -> bool:
    """Whether a member is null: the quote ends a name. One in a string has a backslash before it,
    and one that opens a string, whose text may be `:null`, has punctuation."""
    start = event.find(b'":null')
    while start >= 0:
        if event[start - 1 : start].isalnum():
            return True
        start = event.find(b'":null', start + 1)
    return False


class Sample:
    """What is kept of one answer of ours that all rules shall judge."""

    __slots__ = ("_body", "_reads", "too_long")

    def __init__(self) -> None:
        self._body = bytearray()
        self._reads: list[Read] = []
        self.too_long = False

    def add(self, sent: bytes, seconds: float) -> None:
        """What was sent, `seconds` after the request came."""
        if self.too_long or len(self._body) + len(sent) > MAX_SAMPLE_BYTES:
            self.too_long = True
            self._body.clear()
            self._reads.clear()
            return
        self._reads.append(Read(len(self._body), seconds))
        self._body += sent

    def response(self, status: int, headers: Headers) -> Response:
        return Response(
            status=status, headers=headers, body=bytes(self._body), reads=tuple(self._reads)
        )


SAMPLED: tuple[Rule, ...] = tuple(
    rule for rule in RULES if rule.each is not None and rule.id not in ("R210", "R211")
)
"""What one exchange shows. R210 and R211 belong to OpenAI's own servers."""


def check_sample(
    sample: Sample,
    *,
    dialect: str,
    request: bytes,
    status: int,
    headers: Mapping[str, str],
    path: str,
) -> list[Finding]:
    """What a sampled answer breaks, in strict mode. A few milliseconds: not for the event loop.

    `headers` are those of the answer; `path` is the one that was asked.
    """
    if sample.too_long:
        return []
    name: DialectName = DIALECT_NAMES[dialect]
    exchange = Exchange(
        probe="sample",
        dialect=name,
        request=Request(url=path, body=request),
        response=sample.response(status, tuple(headers.items())),
    )
    evidence = Evidence({"sample": exchange}, dialect=name, mode="strict")
    return [finding for outcome in judge(evidence, SAMPLED) for finding in outcome.findings]
