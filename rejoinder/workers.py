"""Several server processes on one port: started, watched, started again, stopped together.

The parent serves nothing. Each worker has a socket of its own on the same address (SO_REUSEPORT);
the kernel shares connections out. It must not know: what a worker serves.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from msgspec import Struct

log = logging.getLogger("rejoinder.workers")

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A worker that lived so long starts again as quickly as the first time."""

SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))
KILL_AFTER_SECONDS = 10.0
"""How long after its grace period a worker that does not stop is killed."""


class Lifeline(Struct, frozen=True):
    """What a worker has of its parent: where to say that it is ready, and what ends with it."""

    ready: int
    parent: int


Work = Callable[[socket.socket, Lifeline], int]
"""Serves on a socket until a signal comes; its exit status."""


class _Worker(Struct):
    number: int
    process: int = 0
    began: float = 0.0
    failures: int = 0
    restart_at: float | None = None
    ready: int | None = None


def shared(host: str, port: int) -> socket.socket:
    """A bound socket that others of this process's kind may share. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


class Supervisor:
    """`run` returns the exit status when all workers have ended.

    `on_ready` is called once, when every worker serves for the first time. It must run in the
    main thread of a process without others: workers are forks of it.
    """

    def __init__(
        self,
        work: Work,
        *,
        address: tuple[str, int],
        num_workers: int,
        grace_seconds: float,
        on_ready: Callable[[], None],
    ) -> None:
        self._work = work
        self._address = address
        self._grace_seconds = grace_seconds
        self._on_ready = on_ready
        self._workers = [_Worker(number) for number in range(num_workers)]
        self._announced = False
        self._stop_by: float | None = None
        self._status = 0
        self._life, self._alive = os.pipe()

    def run(self) -> int:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            # The first one alone: it finds what is wrong, and prepares the database.
            self._start(self._workers[0])
            while self._running() or self._waiting():
                self._turn()
        finally:
            self._signal_all(signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(self._life)
            os.close(self._alive)
        return self._status

    def _turn(self) -> None:
        """Waits for the next thing to do, and does it."""
        arrived = signal.sigtimedwait(SIGNALS, self._patience())
        if arrived is not None and arrived.si_signo != signal.SIGCHLD:
            self._stop(signal.SIGTERM)
        self._reap()
        if self._stop_by is not None:
            if time.monotonic() > self._stop_by:
                self._signal_all(signal.SIGKILL)
            return
        self._hear()
        now = time.monotonic()
        for worker in self._workers:
            if worker.restart_at is not None and worker.restart_at <= now:
                self._start(worker)

    def _patience(self) -> float:
        now = time.monotonic()
        if self._stop_by is not None:
            return max(0.01, self._stop_by - now)
        times = [w.restart_at - now for w in self._workers if w.restart_at is not None]
        if any(worker.ready is not None for worker in self._workers):
            times.append(0.05)
        return max(0.0, min(times, default=3600.0))

    # ------------------------------------------------------------ workers

    def _running(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.process]

    def _waiting(self) -> list[_Worker]:
        if self._stop_by is not None:
            return []
        return [worker for worker in self._workers if worker.restart_at is not None]

    def _start(self, worker: _Worker) -> None:
        told, tells = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            os.close(told)
            os.close(self._alive)
            os._exit(self._be_worker(Lifeline(tells, self._life)))
        os.close(tells)
        os.set_blocking(told, False)
        self._forget(worker)
        worker.process = process
        worker.began = time.monotonic()
        worker.restart_at = None
        worker.ready = told

    def _be_worker(self, lifeline: Lifeline) -> int:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            with shared(*self._address) as listener:
                return self._work(listener, lifeline)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
        except BaseException:
            log.exception("a worker failed")
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            logging.shutdown()

    def _hear(self) -> None:
        """Notes which workers have become ready."""
        for worker in self._workers:
            if worker.ready is None:
                continue
            with contextlib.suppress(BlockingIOError):
                if os.read(worker.ready, 1):
                    self._became_ready(worker)

    def _became_ready(self, worker: _Worker) -> None:
        self._forget(worker)
        if self._announced:
            log.info("worker %d serves again", worker.number)
            return
        if worker.number == 0:
            for other in self._workers[1:]:
                self._start(other)
        if all(one.process and one.ready is None for one in self._workers):
            self._announced = True
            self._on_ready()

    def _forget(self, worker: _Worker) -> None:
        if worker.ready is not None:
            os.close(worker.ready)
            worker.ready = None

    def _reap(self) -> None:
        for worker in self._running():
            ended, status = os.waitpid(worker.process, os.WNOHANG)
            if ended:
                self._hear()
                self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: _Worker, code: int) -> None:
        worker.process = 0
        self._forget(worker)
        if self._stop_by is not None:
            if code not in (0, -signal.SIGTERM):
                self._status = 1
            return
        if not self._announced:
            self._status = 1
            self._stop(signal.SIGTERM)
            return
        lived = time.monotonic() - worker.began
        worker.failures = 0 if lived > STEADY_SECONDS else worker.failures + 1
        wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** max(0, worker.failures - 1))
        worker.restart_at = time.monotonic() + wait
        log.error(
            "worker %d ended with status %d; another starts in %.1f s", worker.number, code, wait
        )

    def _stop(self, number: signal.Signals) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._grace_seconds + KILL_AFTER_SECONDS
        self._signal_all(number)

    def _signal_all(self, number: signal.Signals) -> None:
        for worker in self._running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process, number)
