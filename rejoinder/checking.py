"""The contract's rules inside the service: cheap ones on every frame, all on a sampled share.

It joins `check`, which knows no HTTP, and `web`, which knows no rules. It must not know: events.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from rejoinder.check.live import LiveCheck, Sample, check_sample

log = logging.getLogger("rejoinder.check")


class AnswerChecks:
    """`share`: the part of all answers, 0 to 1, that is judged by every rule after it was sent.
    `violated(model, rule)` is told what an answer of ours broke: each is a bug of ours."""

    def __init__(
        self,
        share: float,
        violated: Callable[[str, str], None],
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._share = share
        self._violated = violated
        self._chance = chance
        self._judging: set[asyncio.Task[None]] = set()

    def watch(self, dialect: str) -> LiveCheck:
        """The cheap checks of one stream."""
        return LiveCheck(dialect)

    def sample(self) -> Sample | None:
        """What keeps an answer that all rules shall judge; None: not this one."""
        return Sample() if self._share and self._chance() < self._share else None

    def broken(self, model: str, rules: tuple[str, ...]) -> None:
        for rule in rules:
            log.error("an answer of %s broke %s", model, rule)
            self._violated(model, rule)

    def judge(
        self,
        sample: Sample,
        *,
        model: str,
        dialect: str,
        request: bytes,
        status: int,
        headers: Mapping[str, str],
        path: str,
    ) -> None:
        """Judges a complete answer in a thread; the answer does not wait for it."""

        async def run() -> None:
            findings = await asyncio.to_thread(
                check_sample,
                sample,
                dialect=dialect,
                request=request,
                status=status,
                headers=headers,
                path=path,
            )
            self.broken(model, tuple(sorted({finding.rule for finding in findings})))

        task = asyncio.ensure_future(run())
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)
