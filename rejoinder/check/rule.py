"""What a rule is: data about one sentence of the contract, and one predicate.

A rule looks at each exchange by itself (`on`), or at several that it names (`needs`). This module
must not know: any particular rule, sockets, reports.
"""

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct

from rejoinder.check.exchange import ChoiceChunk, Chunk, DialectName, Exchange, Frame, Headers
from rejoinder.types import JsonObject

Severity = Literal["error", "warning"]

Kind = Literal["T", "P", "E"]
"""T: any transcript shows it; P: a request of its own is needed; E: it needs to know the engine."""

Mode = Literal["strict", "live"]
"""strict: the seeds to the letter; live: what the vendors' own servers are seen to do passes."""

Level = Literal["rule", "lenient", "warning"]
"""rule: as severe as the rule; lenient: a warning in live mode; warning: always a warning."""


class Problem(Struct, frozen=True):
    """One breach, as its predicate saw it."""

    message: str
    frame: Frame | None = None
    exchange: Exchange | None = None
    level: Level = "rule"


class Skipped(Exception):
    """A predicate cannot judge; the text says why."""


class Probe(Struct, frozen=True, kw_only=True):
    """One request that rules need. Probes that ask the same thing are sent once.

    `body`: merged over the base request, which has the model, one message and a small limit;
    a value of `DROP` takes a key out. `raw` replaces the body. `path` is below the base URL,
    and `{name}` in it is the id that the probe of that name was given. `stop_after`: the client
    closes the connection after so many frames. `quiet`: before all others, one after the other,
    for answers that are compared: what else runs may change the numbers of an engine. `alone`:
    when all others are done, one after the other, `delay_seconds` after the one before; with
    `until` earlier, as soon as an answer makes it true, given what was seen before.
    """

    name: str
    body: JsonObject | None = None
    raw: bytes | None = None
    method: str = "POST"
    path: str = "/chat/completions"
    headers: Headers = ()
    key: Literal["given", "none", "wrong"] = "given"
    stop_after: int = 0
    after: tuple[str, ...] = ()
    quiet: bool = False
    alone: bool = False
    delay_seconds: float = 0.0
    until: Callable[[Mapping[str, Exchange], Exchange], bool] | None = None
    dialects: tuple[DialectName, ...] = ("O", "D")


DROP = "\0drop"


class Evidence:
    """Everything that was seen of one server."""

    def __init__(
        self,
        seen: Mapping[str, Exchange],
        *,
        dialect: DialectName,
        mode: Mode = "live",
        model: str = "",
        api_key: str = "",
    ) -> None:
        """`seen`: exchanges by the names of their probes; one may have several names."""
        self.exchanges = list({id(x): x for x in seen.values()}.values())
        self.dialect: DialectName = dialect
        self.mode: Mode = mode
        self.model = model
        self.api_key = api_key
        self._by_probe = dict(seen)

    def find(self, name: str) -> Exchange | None:
        return self._by_probe.get(name)

    def get(self, name: str) -> Exchange:
        """Raises Skipped if the probe was not sent, or not answered in time."""
        exchange = self._by_probe.get(name)
        if exchange is None:
            raise Skipped(f"the request “{name}” was not made")
        if exchange.is_unanswered:
            raise Skipped(f"the request “{name}” was not answered in time")
        return exchange

    def answer(self, name: str) -> Exchange:
        """Raises Skipped if the probe was not sent or not answered with 200."""
        exchange = self.get(name)
        if not exchange.is_answer:
            raise Skipped(f"the request “{name}” was {exchange.how_answered}")
        return exchange


Each: TypeAlias = Callable[[Exchange], Iterable[Problem]]
Whole: TypeAlias = Callable[[Evidence], Iterable[Problem]]

Case = TypeVar("Case")

On = Literal["stream", "body", "answer", "error", "any"]

_APPLIES: dict[On, Callable[[Exchange], bool]] = {
    "stream": lambda x: x.is_stream,
    "body": lambda x: x.is_body,
    "answer": lambda x: x.is_answer,
    "error": lambda x: x.response.status >= 400,
    "any": lambda x: True,
}


class Rule(Struct, frozen=True, kw_only=True):
    """One rule of the contract. Exactly one of `each` and `whole` is its predicate."""

    id: str
    title: str
    dialect: Literal["O", "D", "B"]
    severity: Severity
    kind: Kind
    says: str
    checked_how: str
    group: str = ""
    on: On = "any"
    strict: Severity | None = None
    """The severity in strict mode, where it differs."""
    probes: tuple[Probe, ...] = ()
    each: Each | None = None
    whole: Whole | None = None

    def applies_to(self, dialect: DialectName) -> bool:
        return self.dialect in ("B", dialect)

    def severity_in(self, mode: Mode, level: Level = "rule") -> Severity:
        if level == "warning" or (level == "lenient" and mode == "live"):
            return "warning"
        return self.strict or self.severity if mode == "strict" else self.severity

    def judge(self, evidence: Evidence) -> tuple[list[Problem], int]:
        """The problems and how many exchanges were looked at. Raises Skipped."""
        if self.whole is not None:
            return list(self.whole(evidence)), 1
        assert self.each is not None
        seen = [x for x in evidence.exchanges if _APPLIES[self.on](x)]
        problems: list[Problem] = []
        looked = 0
        for exchange in seen:
            try:
                found = list(self.each(exchange))
            except Skipped:
                continue
            looked += 1
            problems += [
                p if p.exchange else Problem(p.message, p.frame, exchange, p.level) for p in found
            ]
        if not looked:
            raise Skipped("no exchange showed what this rule is about")
        return problems, looked


def rule(
    id: str,
    title: str,
    *,
    dialect: Literal["O", "D", "B"],
    says: str,
    how: str,
    severity: Severity = "error",
    kind: Kind = "T",
    on: On = "answer",
    strict: Severity | None = None,
) -> Callable[[Each], Rule]:
    """Makes a predicate over one exchange a rule. It may raise Skipped where it has no say."""

    def make(predicate: Each) -> Rule:
        return Rule(
            id=id,
            title=title,
            dialect=dialect,
            severity=severity,
            kind=kind,
            says=says,
            checked_how=how,
            on=on,
            strict=strict,
            each=predicate,
        )

    return make


def whole_rule(
    id: str,
    title: str,
    *,
    dialect: Literal["O", "D", "B"],
    says: str,
    how: str,
    severity: Severity = "error",
    kind: Kind = "P",
    strict: Severity | None = None,
    probes: tuple[Probe, ...] = (),
) -> Callable[[Whole], Rule]:
    """Makes a predicate over all that was seen a rule; `probes` are the requests it needs."""

    def make(predicate: Whole) -> Rule:
        return Rule(
            id=id,
            title=title,
            dialect=dialect,
            severity=severity,
            kind=kind,
            says=says,
            checked_how=how,
            strict=strict,
            probes=probes,
            whole=predicate,
        )

    return make


def of_each(cases: Iterable[Case], judge: Callable[[Case], Iterable[Problem]]) -> list[Problem]:
    """The problems of all cases that can be judged. Raises Skipped if one cannot be and the others
    show nothing: the rule is then neither broken nor kept."""
    problems: list[Problem] = []
    silent: Skipped | None = None
    for case in cases:
        try:
            problems += judge(case)
        except Skipped as skipped:
            silent = silent or skipped
    if silent and not problems:
        raise silent
    return problems


def rules_of(module: ModuleType, group: str) -> tuple[Rule, ...]:
    """The rules that a module defines, in order of their numbers."""
    found = [value for value in vars(module).values() if isinstance(value, Rule)]
    found += [
        one
        for value in vars(module).values()
        if isinstance(value, tuple)
        for one in value
        if isinstance(one, Rule)
    ]
    unique = {one.id: one for one in found}
    return tuple(
        Rule(**{**{f: getattr(one, f) for f in one.__struct_fields__}, "group": group})
        for one in sorted(unique.values(), key=lambda r: int(r.id[1:]))
    )


# ---------------------------------------------------------------- what predicates share


def at(where: Chunk | ChoiceChunk, message: str, level: Level = "rule") -> Problem:
    """A problem of one chunk."""
    return Problem(message, where.frame, None, level)
