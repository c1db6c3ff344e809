"""A fleet: one engine out of replicas. A sequence whose replica is lost goes on on another.

It works over any `Engine`, in process or remote. It must not know: HTTP, text, messages.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress

from rejoinder.engines.continuation import Diverged, Sequence
from rejoinder.engines.replica import ProbedEngine, Replica, ReplicaStatus
from rejoinder.engines.routing import Match, PrefixIndex, choose
from rejoinder.errors import (
    ChatError,
    EngineFailed,
    Overloaded,
    ProviderFailed,
    ProviderTimeout,
    Unavailable,
)
from rejoinder.types import Counts, Engine, Prompt, SamplingParams, Step

MAX_MOVES = 8
"""How often one sequence may go on on another replica after it has begun."""

BUSY_SECONDS = 1.0
"""How long a replica that has no room is left alone when it does not say."""

LOSSES = (ProviderFailed, EngineFailed, Unavailable, Overloaded)
"""What another replica may do better. A fault of the request is the same everywhere."""


class _Moved(ProviderFailed):
    """The replica leaves the fleet; it has done nothing wrong."""


class Fleet:
    """An Engine of replicas, which can be added, drained and removed while it serves.

    `first_token_timeout`, `between_tokens_timeout`: seconds after which a silent replica counts
    as lost, for engines that have no such limits of their own; None: no limit here.
    """

    def __init__(
        self,
        replicas: Mapping[str, Engine],
        *,
        first_token_timeout: float | None = None,
        between_tokens_timeout: float | None = None,
        probe_seconds: float = 2.0,
        slow_start_seconds: float = 20.0,
        index: PrefixIndex | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._first_token_timeout = first_token_timeout
        self._between_tokens_timeout = between_tokens_timeout
        self._probe_seconds = probe_seconds
        self._slow_start_seconds = slow_start_seconds
        self._index = PrefixIndex() if index is None else index
        self._clock = clock
        self._random = chance or random.Random()
        self.num_moves = 0
        """How often a sequence that had begun went on on another replica, so far."""
        self._replicas: dict[str, Replica] = {}
        self._probing: asyncio.Task[None] | None = None
        for name, engine in replicas.items():
            # They start together: none is colder than the others.
            self._join(name, engine, since=clock() - slow_start_seconds)

    @property
    def context_length(self) -> int:
        """The least of the replicas'. Raises Unavailable where none is known yet."""
        known = []
        for replica in self._replicas.values():
            with suppress(Unavailable):
                known.append(replica.engine.context_length)
        if not known:
            raise Unavailable("No replica has been reached yet.")
        return min(known)

    @property
    def fingerprint(self) -> str:
        seen = sorted({replica.engine.fingerprint for replica in self._replicas.values()})
        if len(seen) == 1:
            return seen[0]
        return "fp_" + hashlib.sha256(" ".join(seen).encode()).hexdigest()[:10]

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        now = self._clock()
        return tuple(replica.status(now) for replica in self._replicas.values())

    @property
    def failure(self) -> str | None:
        """Why the fleet can serve nothing now; None: some replica is well."""
        now = self._clock()
        if any(replica.available(now) for replica in self._replicas.values()):
            return None
        return f"none of {len(self._replicas)} replicas is serving"

    async def start(self) -> None:
        """Probes every replica once and begins to probe them regularly."""
        if self._probing is None:
            await self._probe_all()
            self._probing = asyncio.create_task(self._probe())

    def add(self, name: str, engine: Engine) -> None:
        """A new replica; it gets its full share of the load only after the slow start."""
        if name in self._replicas:
            raise ValueError(f"the fleet has a replica '{name}' already")
        self._join(name, engine, since=self._clock())

    async def drain(self, name: str, *, within_seconds: float | None = None) -> None:
        """Gives a replica no new sequences and waits for its last one. What still runs after
        `within_seconds` goes on on other replicas."""
        replica = self._replicas[name]
        replica.draining = True
        try:
            async with asyncio.timeout(within_seconds):
                await replica.idle()
        except TimeoutError:
            replica.leave()
            await replica.idle()

    async def remove(self, name: str, *, within_seconds: float | None = None) -> None:
        """Drains a replica and closes its engine."""
        await self.drain(name, within_seconds=within_seconds)
        replica = self._replicas.pop(name, None)
        if replica is not None:  # else it was asked for twice
            self._index.remove(name)
            await replica.engine.close()

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
            self._probing = None
        await asyncio.gather(*(replica.engine.close() for replica in self._replicas.values()))

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        sequence = Sequence(prompt, params, counts)
        tried: set[str] = set()
        moves = 0
        failure: ChatError | None = None
        while True:
            if sequence.exhausted:
                yield Step((), finish_reason="length")
                return
            replica, match = self._choose(sequence, tried, failure)
            before = len(sequence.generated)
            try:
                async with aclosing(self._run(replica, sequence, match)) as steps:
                    async for step in steps:
                        yield step
                return
            except Diverged:
                # It is the replica's answer too, but not this one; others compute no better.
                sequence.repeatable = False
                continue
            except LOSSES as error:
                failure = error
                self._blame(replica, error)
            if len(sequence.generated) > before:
                tried.clear()
            tried.add(replica.name)
            if sequence.generated and not sequence.exhausted:
                moves += 1
                if moves > MAX_MOVES:
                    raise failure
                self.num_moves += 1

    async def _run(
        self, replica: Replica, sequence: Sequence, match: Match
    ) -> AsyncGenerator[Step, None]:
        """What one replica does for a sequence. Raises ChatError where it is lost."""
        seconds = self._first_token_timeout
        lost_before = replica.lost
        ended = False
        replica.began()
        try:
            async with aclosing(sequence.issue(replica.engine)) as steps:
                while not ended:
                    try:
                        async with replica.wait(seconds):
                            step = await anext(steps, None)
                    except TimeoutError:
                        raise self._silence(replica) from None
                    if step is None:
                        raise ProviderFailed("The replica's answer ended before its finish reason.")
                    sequence.take(step)
                    ended = step.finish_reason is not None
                    if ended:
                        self._learn(replica, sequence, match)
                    yield step
                    if replica.lost and not (lost_before or ended):
                        raise self._silence(replica)
                    seconds = self._between_tokens_timeout
        except LOSSES:
            sequence.lose()
            raise
        finally:
            replica.ended()
            sequence.count()

    def _choose(
        self, sequence: Sequence, tried: set[str], failure: ChatError | None
    ) -> tuple[Replica, Match]:
        """The best replica for what is left of a sequence. Raises ChatError: the last failure
        where there is none that could do better."""
        now = self._clock()
        open_to_it = [r for r in self._replicas.values() if not r.draining and r.name not in tried]
        obstacles = [sequence.obstacle(r.engine) for r in open_to_it]
        able = [r for r, obstacle in zip(open_to_it, obstacles, strict=True) if obstacle is None]
        if not able and sequence.repeatable:
            able = open_to_it
        if not able:
            obstacle = next(iter(filter(None, obstacles)), None)
            if failure is not None and obstacle is not None:
                raise ProviderFailed(
                    f"The replica was lost, and {obstacle}: {failure.message}"
                ) from failure
            raise failure or Unavailable("No replica is serving.")
        # Where nobody is well, somebody is tried all the same: they may have come back.
        chosen_from = [r for r in able if r.available(now)] or able
        token_ids = sequence.token_ids
        match = self._index.match(sequence.prompt.cache_salt, token_ids)
        candidate = choose(
            [r.candidate(now) for r in chosen_from],
            match,
            cache_key=sequence.prompt.cache_key,
            random=self._random,
        )
        self._index.record(candidate.name, sequence.prompt.cache_salt, token_ids, match)
        return self._replicas[candidate.name], match

    def _learn(self, replica: Replica, sequence: Sequence, match: Match) -> None:
        """A whole answer tells how much was cached, and leaves itself in the cache."""
        replica.succeeded(self._clock())
        if replica.name not in self._replicas:
            return
        cached = sequence.cached_tokens
        replica.reports_cached_tokens |= cached > 0
        if replica.reports_cached_tokens:
            self._index.correct(replica.name, match, cached_tokens=cached)
        self._index.record(replica.name, sequence.prompt.cache_salt, sequence.token_ids, match)

    def _blame(self, replica: Replica, error: ChatError) -> None:
        now = self._clock()
        match error:
            case _Moved():
                pass
            case Overloaded():
                replica.busy(now + (error.retry_after or BUSY_SECONDS))
            case _:
                replica.failed(now)

    def _silence(self, replica: Replica) -> ProviderFailed:
        if replica.draining:
            return _Moved("The replica leaves the fleet.")
        if replica.lost:
            return ProviderFailed("The replica was lost.")
        return ProviderTimeout("The replica was silent for too long.")

    def _join(self, name: str, engine: Engine, *, since: float) -> None:
        self._replicas[name] = Replica(
            name, engine, slow_start=self._slow_start_seconds, since=since
        )
        self._index.add(name)

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(self._probe_seconds)
            await self._probe_all()

    async def _probe_all(self) -> None:
        await asyncio.gather(*(self._probe_one(r) for r in tuple(self._replicas.values())))

    async def _probe_one(self, replica: Replica) -> None:
        well = True
        if isinstance(replica.engine, ProbedEngine):
            try:
                well = await replica.engine.healthy()
            except Exception:
                # Whatever a probe runs into, the others must still be probed.
                well = False
        if replica.probed(self._clock(), well=well) and replica.name in self._replicas:
            self._index.clear(replica.name)
