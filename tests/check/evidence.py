"""What the checker sees of the ideal server, and ways to break it.

A `Break` changes copies of exchanges by the names of their probes.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

from rejoinder.check.exchange import DialectName, Exchange, Response
from rejoinder.check.judge import Outcome, judge
from rejoinder.check.rule import Evidence, Mode
from rejoinder.check.rules import RULES
from rejoinder.check.run import _in_order, probes_for
from tests.check.ideal import KEY, MODEL, Ideal, sse

Seen = dict[str, Exchange]
Break = Callable[[Seen], None]


def ideal_evidence(dialect: DialectName) -> Seen:
    """All probes of all rules, answered by the ideal server."""
    ideal = Ideal(dialect)
    seen: Seen = {}
    for probe in _in_order(probes_for(RULES, dialect)):
        before = {name: seen[name].body for name in probe.after if name in seen}
        ids = {name: str(value["id"]) for name, value in before.items() if "id" in (value or {})}
        seen[probe.name] = ideal.ask(probe, ids)
    return seen


def judged(seen: Seen, dialect: DialectName, mode: Mode = "strict") -> list[Outcome]:
    evidence = Evidence(seen, dialect=dialect, mode=mode, model=MODEL, api_key=KEY)
    return judge(evidence, RULES)


def broken_rules(seen: Seen, dialect: DialectName, mode: Mode = "strict") -> set[str]:
    return {o.rule for o in judged(seen, dialect, mode) if o.verdict in ("failed", "warned")}


# ---------------------------------------------------------------- ways to break


def with_response(x: Exchange, **changes: Any) -> Exchange:
    fields = {name: getattr(x.response, name) for name in Response.__struct_fields__}
    response = Response(**{**fields, **changes})
    return Exchange(probe=x.probe, dialect=x.dialect, request=x.request, response=response, at=x.at)


def payloads(x: Exchange) -> list[Any]:
    return [f.data if f.json is None else copy.deepcopy(f.json) for f in x.frames if f.data]


def raw(probe: str, change: Callable[[bytes], bytes]) -> Break:
    """The bytes of one answer."""

    def apply(seen: Seen) -> None:
        seen[probe] = with_response(seen[probe], body=change(seen[probe].response.body))

    return apply


def frames(probe: str, change: Callable[[list[Any]], Any]) -> Break:
    """The list of payloads of one stream: JSON objects and “[DONE]”."""

    def apply(seen: Seen) -> None:
        found = payloads(seen[probe])
        change(found)
        seen[probe] = with_response(seen[probe], body=b"".join(sse(p) for p in found))

    return apply


def chunk(probe: str, at: int, change: Callable[[Any], Any]) -> Break:
    """One chunk of a stream; negative positions leave “[DONE]” out."""
    return frames(probe, lambda found: change(found[:-1][at]))


def chunks(probe: str, change: Callable[[Any], Any]) -> Break:
    """All chunks of a stream."""
    return frames(probe, lambda found: [change(one) for one in found[:-1]])


def body(probe: str, change: Callable[[Any], Any]) -> Break:
    """The JSON of a unary answer or an error."""

    def apply(seen: Seen) -> None:
        value = json.loads(seen[probe].response.body)
        change(value)
        seen[probe] = with_response(seen[probe], body=json.dumps(value).encode())

    return apply


def status(probe: str, code: int) -> Break:
    def apply(seen: Seen) -> None:
        seen[probe] = with_response(seen[probe], status=code)

    return apply


def header(probe: str, name: str, value: str | None) -> Break:
    def apply(seen: Seen) -> None:
        kept = [(n, v) for n, v in seen[probe].response.headers if n.lower() != name]
        more = [] if value is None else [(name, value)]
        seen[probe] = with_response(seen[probe], headers=(*kept, *more))

    return apply


def several(*breaks: Break) -> Break:
    def apply(seen: Seen) -> None:
        for one in breaks:
            one(seen)

    return apply
