"""The commands `check`, `record` and `replay` as plain functions: options in, exit status out.

Must not know: the command line's library.
"""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Literal

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rejoinder.check.judge import Report
from rejoinder.check.record import record
from rejoinder.check.replay import replay
from rejoinder.check.report import Format, print_report, render, summary
from rejoinder.check.rule import Mode
from rejoinder.check.run import CannotCheck, Dialect, grade, grade_file
from rejoinder.check.tape import BadTape

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_NOT_JUDGED = 2


class CheckOptions(Struct, frozen=True, kw_only=True):
    """`url` or both `file` and `request`. `only`: rules (R95) and sections (tools).

    `fail_on` warning: warnings fail too. `output`: where the report goes; "" is stdout.
    """

    url: str = ""
    model: str = ""
    api_key: str = ""
    dialect: Dialect = "auto"
    only: tuple[str, ...] = ()
    report: Format = "text"
    output: str = ""
    mode: Mode = "live"
    fail_on: Literal["error", "warning"] = "error"
    concurrency: int = 8
    timeout_seconds: float = 120.0
    load: int = 0
    file: str = ""
    request: str = ""


def main_check(options: CheckOptions) -> int:
    """0: no rule is broken; 1: one is; 2: nothing could be judged."""
    console = Console(stderr=True)
    try:
        _require_writable(options.output)
        report = _report(options, console)
    except CannotCheck as error:
        text = f"rejoinder check: {error}"
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
        return EXIT_NOT_JUDGED
    _write(report, options, console)
    bad = report.verdicts["failed"]
    if options.fail_on == "warning":
        bad += report.verdicts["warned"]
    return EXIT_FAILED if bad else EXIT_PASSED


def _report(options: CheckOptions, console: Console) -> Report:
    if options.file:
        if not options.request:
            raise CannotCheck("--file needs --request: the JSON that was asked")
        return grade_file(
            Path(options.file),
            Path(options.request),
            dialect=options.dialect,
            only=options.only,
            mode=options.mode,
        )
    if not options.url or not options.model:
        raise CannotCheck("a URL and --model are needed, or --file and --request")
    bar = Progress(
        TextColumn("[bold]checking"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=None, name="")

        def progress(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, name=name[:40])

        return asyncio.run(
            grade(
                options.url,
                model=options.model,
                api_key=options.api_key,
                dialect=options.dialect,
                only=options.only,
                mode=options.mode,
                concurrency=options.concurrency,
                timeout_seconds=options.timeout_seconds,
                load=options.load,
                progress=progress,
            )
        )


def _require_writable(output: str) -> None:
    """Before the requests are made: what was found out would be lost after them."""
    try:
        if output:
            Path(output).open("a").close()
    except OSError as error:
        raise CannotCheck(f"{output} cannot be written: {error.strerror}") from None


def _write(report: Report, options: CheckOptions, console: Console) -> None:
    if options.output:
        Path(options.output).write_text(render(report, options.report), encoding="utf-8")
        text = f"{options.output}: {summary(report)}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    elif options.report == "text":
        print_report(report, Console(highlight=False))
    else:
        sys.stdout.write(render(report, options.report))


class RecordOptions(Struct, frozen=True, kw_only=True):
    """`url` is the server to record, `output` the tape, to which exchanges are added."""

    url: str
    output: str
    host: str = "127.0.0.1"
    port: int = 0


class ReplayOptions(Struct, frozen=True, kw_only=True):
    """`speed` 2 replays twice as fast, 0 without delays."""

    file: str
    host: str = "127.0.0.1"
    port: int = 0
    speed: float = 1.0


def main_record(options: RecordOptions) -> int:
    """Records until interrupted."""

    def started(address: str) -> None:
        console = Console(stderr=True, highlight=False)
        console.print(f"Recording {options.url} to {options.output} at {address}", markup=False)

    path = Path(options.output)
    return _serve(
        record(options.url, path, host=options.host, port=options.port, started=started), "record"
    )


def main_replay(options: ReplayOptions) -> int:
    """Replays until interrupted."""

    def started(address: str) -> None:
        console = Console(stderr=True, highlight=False)
        console.print(f"Replaying {options.file} at {address}", markup=False)

    path = Path(options.file)
    serving = replay(
        path, host=options.host, port=options.port, speed=options.speed, started=started
    )
    return _serve(serving, "replay")


def _serve(serving: Coroutine[None, None, None], command: str) -> int:
    try:
        asyncio.run(serving)
    except KeyboardInterrupt:
        return EXIT_PASSED
    except (BadTape, ValueError, OSError) as error:
        console = Console(stderr=True, highlight=False)
        console.print(f"rejoinder {command}: {error}", style="red", markup=False)
        return EXIT_FAILED
    return EXIT_PASSED
