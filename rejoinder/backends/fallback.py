"""Several backends under one name, tried in order before the first event only.

What moves on to the next is a table of error classes; who keeps failing is skipped by a circuit
breaker. This module must not know: providers, engines, HTTP.
"""

import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType

from rejoinder.backends import Backend
from rejoinder.backends.breaker import Breaker, BreakerPolicy, Outcome
from rejoinder.errors import (
    AuthenticationFailed,
    ChatError,
    ContextLengthExceeded,
    EngineFailed,
    InvalidParameter,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    ProviderFailed,
    ProviderTimeout,
    QuotaExceeded,
    RateLimited,
    RequestTooLarge,
    TokensRateLimited,
    Unavailable,
)
from rejoinder.events import Event
from rejoinder.types import ChatRequest, Meter

__all__ = ["MOVES_ON", "Fallback"]

MOVES_ON: Mapping[type[ChatError], bool] = MappingProxyType(
    {
        ProviderFailed: True,
        ProviderTimeout: True,
        Overloaded: True,
        Unavailable: True,
        EngineFailed: True,
        RateLimited: True,
        TokensRateLimited: True,
        NotFound: True,
        # The client's own fault is the same everywhere.
        InvalidRequest: False,
        InvalidParameter: False,
        ContextLengthExceeded: False,
        RequestTooLarge: False,
        AuthenticationFailed: False,
        PermissionDenied: False,
        QuotaExceeded: False,
    }
)
"""Whether the next backend is tried after an error before the first event."""


class Fallback:
    """A Backend of Backends. `on_move(name, error)` is told whenever one is passed over."""

    def __init__(
        self,
        backends: Sequence[tuple[str, Backend]],
        *,
        policy: BreakerPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_move: Callable[[str, ChatError], None] = lambda name, error: None,
    ) -> None:
        if not backends:
            raise ValueError("a fallback needs at least one backend")
        policy = policy or BreakerPolicy()
        self._backends = [(name, backend, Breaker(policy)) for name, backend in backends]
        self._clock = clock
        self._on_move = on_move

    async def chat(self, request: ChatRequest, meter: Meter) -> AsyncGenerator[Event, None]:
        """The events of the first backend that gives one. Raises the last error if none does,
        Unavailable if none may be tried now."""
        failure: ChatError | None = None
        for name, backend, breaker in self._backends:
            permit = breaker.admit(self._clock())
            if permit is None:
                continue
            outcome: Outcome = "unknown"
            pause: float | None = None
            started = False
            try:
                async with aclosing(backend.chat(request, meter)) as events:
                    async for event in events:
                        if not started:
                            started = True
                            breaker.began(permit)
                        yield event
                outcome = "worked"
                return
            except ChatError as error:
                moves_on = MOVES_ON.get(type(error), False)
                outcome = "failed" if moves_on else "worked"
                pause = error.retry_after
                if started or not moves_on:
                    raise
                failure = error
            except Exception:
                outcome = "failed"
                raise
            finally:
                if started and outcome == "unknown":
                    outcome = "worked"  # the client left in the middle of a good answer
                breaker.settle(permit, outcome, self._clock(), pause=pause)
            self._on_move(name, failure)
            _reset(meter)
        if failure is not None:
            raise failure
        raise self._all_open()

    async def close(self) -> None:
        """The backends are models of their own and closed by whoever made them."""

    def states(self) -> dict[str, str]:
        """The state of each backend's breaker, for metrics."""
        now = self._clock()
        return {name: breaker.state(now) for name, _, breaker in self._backends}

    def _all_open(self) -> ChatError:
        now = self._clock()
        wait = min(breaker.reopens_in(now) for _, _, breaker in self._backends)
        return Unavailable(
            "No provider of this model is available right now.",
            retry_after=max(1, math.ceil(wait)),
        )


def _reset(meter: Meter) -> None:
    """What a backend counted before it failed without an event is not the client's."""
    meter.sequences.clear()
    meter.reasoning_tokens = 0
    meter.reported = None
