"""`rejoinder check`: which requests to make, in what order, and the report on what came back.

Must not know: single rules; how a report is printed.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from rejoinder.check.client import COMPLETIONS, Target, ask, new_session, request_of
from rejoinder.check.exchange import (
    DIALECT_NAMES,
    DialectName,
    Exchange,
    Request,
    Response,
    as_object,
    as_text,
)
from rejoinder.check.judge import DIALECT_TITLES, Report, judge
from rejoinder.check.probes import BY_GROUP, LIMIT
from rejoinder.check.rule import Evidence, Mode, Probe, Rule
from rejoinder.check.rules import BY_ID, GROUPS, RULES

__all__ = ["CannotCheck", "Progress", "grade", "grade_file", "select_rules"]

Progress = Callable[[int, int, str], None]
"""Called with how many requests are done, how many there are, and the name of the last."""

Dialect = Literal["openai", "deepinfra", "auto"]

LOOK_SECONDS = 0.1
"""Between one look and the next for what shall become true."""

PATHS: dict[DialectName, tuple[str, ...]] = {"O": ("/v1",), "D": ("/v1/openai", "/v1")}
"""Where each dialect is looked for, if the URL is only a host."""


class CannotCheck(Exception):
    """Nothing could be judged; the text says why."""


def select_rules(only: Sequence[str]) -> tuple[Rule, ...]:
    """The rules of ids and groups; all of them for none. Raises CannotCheck for another name."""
    if not only:
        return RULES
    chosen: dict[str, Rule] = {}
    for name in only:
        if name in GROUPS:
            chosen.update((rule.id, rule) for rule in GROUPS[name])
        elif name.upper() in BY_ID:
            chosen[name.upper()] = BY_ID[name.upper()]
        else:
            known = ", ".join(GROUPS)
            raise CannotCheck(f"“{name}” is no rule (R1 … R225) and no group ({known})")
    return tuple(sorted(chosen.values(), key=lambda rule: int(rule.id[1:])))


def probes_for(rules: Iterable[Rule], dialect: DialectName) -> list[Probe]:
    """The probes that rules need, each once, in an order in which none waits for a later one."""
    wanted: dict[str, Probe] = {}
    for rule in rules:
        if not rule.applies_to(dialect):
            continue
        shared = BY_GROUP.get(rule.group, ()) if rule.each is not None else ()
        for probe in (*shared, *rule.probes):
            if dialect in probe.dialects:
                wanted.setdefault(probe.name, probe)
    return list(wanted.values())


async def grade(
    url: str,
    *,
    model: str,
    api_key: str = "",
    dialect: Dialect = "auto",
    only: Sequence[str] = (),
    mode: Mode = "live",
    concurrency: int = 8,
    timeout_seconds: float = 120.0,
    load: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Asks a server what the rules need, and judges it.

    `url` is the server, or its base URL up to /v1 or /v1/openai. `load` requests are made at
    once at the end (R216 … R218), none by default. Raises CannotCheck if the server does not
    answer an ordinary request.
    """
    rules = select_rules(only)
    started = time.perf_counter()
    async with new_session() as session:
        target = await find_target(
            session, url, model, api_key=api_key, dialect=dialect, timeout_seconds=timeout_seconds
        )
        seen = await _Round(session, target, concurrency, progress).make(
            probes_for(rules, target.dialect)
        )
        seen |= await _under_load(session, target, load)
    evidence = Evidence(seen, dialect=target.dialect, mode=mode, model=model, api_key=api_key)
    return Report(
        subject=target.base_url,
        model=model,
        dialect=DIALECT_TITLES[target.dialect],
        mode=mode,
        outcomes=tuple(judge(evidence, rules)),
        num_requests=len(evidence.exchanges),
        num_unanswered=sum(x.response.status == 0 for x in evidence.exchanges),
        seconds=time.perf_counter() - started,
    )


async def find_target(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    *,
    api_key: str,
    dialect: Dialect,
    timeout_seconds: float,
) -> Target:
    """Where completions are, and in which dialect; one ordinary request tells."""
    if "://" not in url:
        url = f"http://{url}"
    base = url.rstrip("/").removesuffix(COMPLETIONS)
    at_root = not base.partition("://")[2].partition("/")[2]
    fixed = DIALECT_NAMES.get(dialect) or ("D" if base.endswith("/openai") else None)
    probe = Probe(name="an ordinary request", body={"stream": True, LIMIT: 4})
    tried: list[tuple[Target, Exchange]] = []
    for path in PATHS[fixed or "O"] if at_root else ("",):
        target = Target(
            base_url=base + path,
            model=model,
            dialect=fixed or "O",
            api_key=api_key,
            timeout_seconds=timeout_seconds,
        )
        tried.append((target, await ask(session, probe, target, {})))
        if tried[-1][1].response.status != 404:
            break
    target, x = next((one for one in tried if one[1].response.status != 404), tried[0])
    if x.response.status == 0:
        raise CannotCheck(f"{target.url(COMPLETIONS)} cannot be reached")
    if not x.ok:
        said = x.response.body[:300].decode("utf-8", "replace")
        raise CannotCheck(
            f"{target.url(COMPLETIONS)} answered an ordinary request with "
            f"{x.response.status}: {said}"
        )
    if fixed is None and any(as_object(chunk.json.get("usage")) for chunk in x.chunks):
        # Only DeepInfra's dialect shows usage that nobody asked for (R123, R127).
        return msgspec.structs.replace(target, dialect="D")
    return target


class _Round:
    """All probes: in parallel up to a limit, each after those it waits for, some alone."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        concurrency: int,
        progress: Progress | None,
    ) -> None:
        self._session = session
        self._target = target
        self._limit = asyncio.Semaphore(max(1, concurrency))
        self._progress = progress
        self._done = 0
        self._total = 0

    async def make(self, probes: Sequence[Probe]) -> dict[str, Exchange]:
        """The answers by the names of their probes; equal requests are made once."""
        self._total = len(probes)
        seen: dict[str, Exchange] = {}
        for probe in (p for p in probes if p.quiet):
            seen[probe.name] = await ask(self._session, probe, self._target, {})
            self._count(probe.name)
        seen |= await self._together([p for p in probes if not (p.quiet or p.alone)])
        for probe in (p for p in probes if p.alone):
            seen[probe.name] = await self._later(probe, seen)
            self._count(probe.name)
        return seen

    async def _later(self, probe: Probe, seen: Mapping[str, Exchange]) -> Exchange:
        """Asked after its delay; with `until` again and again, up to then."""
        deadline = time.perf_counter() + probe.delay_seconds
        while probe.until is not None and (left := deadline - time.perf_counter()) > 0:
            await asyncio.sleep(min(LOOK_SECONDS, left))
            exchange = await ask(self._session, probe, self._target, {})
            if probe.until(seen, exchange):
                return exchange
        await asyncio.sleep(max(0.0, deadline - time.perf_counter()))
        return await ask(self._session, probe, self._target, {})

    async def _together(self, probes: list[Probe]) -> dict[str, Exchange]:
        tasks: dict[str, asyncio.Task[Exchange]] = {}
        by_request: dict[object, asyncio.Task[Exchange]] = {}
        async with asyncio.TaskGroup() as group:
            for probe in _in_order(probes):
                key: object = probe.name
                if not probe.after:
                    key = (request_of(probe, self._target, {}), probe.stop_after)
                task = by_request.get(key)
                if task is None:
                    waits = [tasks[name] for name in probe.after if name in tasks]
                    task = group.create_task(self._one(probe, waits))
                    by_request[key] = task
                else:
                    self._count(probe.name)
                tasks[probe.name] = task
        return {name: task.result() for name, task in tasks.items()}

    async def _one(self, probe: Probe, waits: list[asyncio.Task[Exchange]]) -> Exchange:
        before = [await task for task in waits]
        ids = {x.probe: as_text(as_object(x.body).get("id")) for x in before}
        async with self._limit:
            exchange = await ask(self._session, probe, self._target, ids)
        self._count(probe.name)
        return exchange

    def _count(self, name: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total, name)


def _in_order(probes: list[Probe]) -> list[Probe]:
    """Each after those that it waits for."""
    names = {probe.name for probe in probes}
    ordered: list[Probe] = []
    while len(ordered) < len(probes):
        placed = {probe.name for probe in ordered}
        ready = [p for p in probes if p.name not in placed and (set(p.after) & names) <= placed]
        if not ready:
            raise ValueError("probes wait for each other")
        ordered += ready
    return ordered


async def _under_load(
    session: aiohttp.ClientSession, target: Target, load: int
) -> dict[str, Exchange]:
    """So many requests at once, every fourth of them flex."""
    probes = [
        Probe(
            name=f"load {n}",
            body={"service_tier": "flex", LIMIT: 32} if n % 4 == 0 else {LIMIT: 32},
        )
        for n in range(load)
    ]
    answers = await asyncio.gather(*(ask(session, probe, target, {}) for probe in probes))
    return {x.probe: x for x in answers}


# ---------------------------------------------------------------- a recorded stream


def grade_file(
    stream: Path,
    request: Path,
    *,
    dialect: Dialect = "auto",
    only: Sequence[str] = (),
    mode: Mode = "live",
) -> Report:
    """Judges the body of one recorded answer to one recorded request.

    `stream` is the body as it came; `request` the JSON that was asked. Rules about headers and
    other requests are skipped. Raises CannotCheck for files that cannot be read.
    """
    try:
        body, asked = stream.read_bytes(), request.read_bytes()
        parsed = json.loads(asked)
    except (OSError, ValueError) as error:
        raise CannotCheck(str(error)) from None
    if not isinstance(parsed, dict):
        raise CannotCheck(f"{request}: not a JSON object")
    exchange = recorded(body, asked, DIALECT_NAMES.get(dialect, "O"))
    if dialect == "auto" and _looks_like_d(exchange):
        exchange = recorded(body, asked, "D")
    rules = [rule for rule in select_rules(only) if rule.kind != "P" or rule.each is not None]
    evidence = Evidence({exchange.probe: exchange}, dialect=exchange.dialect, mode=mode)
    outcomes = [o for o in judge(evidence, rules) if o.rule not in ABOUT_HEADERS]
    return Report(
        subject=str(stream),
        model=as_text(parsed.get("model")),
        dialect=DIALECT_TITLES[exchange.dialect],
        mode=mode,
        outcomes=tuple(outcomes),
        num_requests=1,
    )


ABOUT_HEADERS = frozenset({"R1", "R2", "R10", "R12", "R209", "R210", "R211"})
"""What a body alone cannot show."""


def recorded(body: bytes, asked: bytes, dialect: DialectName) -> Exchange:
    return Exchange(
        probe="the file",
        dialect=dialect,
        request=Request(url=f"http://recorded{PATHS[dialect][0]}{COMPLETIONS}", body=asked),
        response=Response(body=body),
    )


def _looks_like_d(x: Exchange) -> bool:
    if not x.streamed:
        return "estimated_cost" in as_object(as_object(x.body).get("usage"))
    with_choices = any(
        chunk.choices and isinstance(chunk.json.get("usage"), dict) for chunk in x.chunks
    )
    return with_choices or any("reasoning_content" in p.delta for p in x.choice_chunks)
