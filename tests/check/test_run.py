"""The checker on real sockets: the ideal server passes, a broken one is caught, reports say so."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rejoinder.check.exchange import DialectName, Request, Response
from rejoinder.check.main import CheckOptions, main_check
from rejoinder.check.report import Format, render, summary
from rejoinder.check.rules import GROUPS, RULES
from rejoinder.check.run import CannotCheck, grade, grade_file, probes_for, select_rules
from tests.check.ideal import KEY, MODEL, Answer, Ideal, serve, sse


@pytest.mark.parametrize("dialect", ["O", "D"])
async def test_ideal_server_passes(dialect: DialectName) -> None:
    done: list[tuple[int, int]] = []
    async with serve(Ideal(dialect)) as url:
        report = await grade(
            url,
            model=MODEL,
            api_key=KEY,
            dialect="openai" if dialect == "O" else "deepinfra",
            mode="strict",
            progress=lambda n, total, name: done.append((n, total)),
        )
    bad = [o for o in report.outcomes if o.verdict in ("failed", "warned")]
    assert bad == []
    assert report.score == 100.0
    assert report.passed
    assert done[-1][0] == done[-1][1]
    assert [n for n, _ in done] == list(range(1, len(done) + 1))


@pytest.mark.parametrize(("dialect", "name"), [("O", "openai"), ("D", "deepinfra")])
async def test_dialect_is_found_by_behaviour(dialect: DialectName, name: str) -> None:
    class Anywhere(Ideal):
        def answer(self, request: Request) -> Response:
            return super().answer(request)

    async with serve(Anywhere(dialect)) as url:
        report = await grade(f"{url}/v1", model=MODEL, api_key=KEY, only=("R95", "R97"))
    assert report.dialect == name
    assert [o.rule for o in report.outcomes] == ["R95" if dialect == "O" else "R97"]


async def test_deepinfra_is_looked_for_where_most_servers_are() -> None:
    class Elsewhere(Ideal):
        def answer(self, request: Request) -> Response:
            if "/openai/" in request.url:
                return self.error(404, "Not found.")
            return super().answer(request)

    async with serve(Elsewhere("D")) as url:
        report = await grade(url, model=MODEL, api_key=KEY, dialect="deepinfra", only=("R97",))
        assert report.subject == f"{url}/v1"
        with pytest.raises(CannotCheck, match=r"/v1/openai/chat/completions answered .* 404"):
            await grade(url, model="other", api_key=KEY, dialect="deepinfra", only=("R97",))


class Unstable(Ideal):
    """Gives every chunk an id of its own."""

    def answer(self, request: Request) -> Response:
        response = super().answer(request)
        if b"text/event-stream" not in dict(response.headers).get("Content-Type", "").encode():
            return response
        frames = response.body.split(b"\n\n")
        body = b"\n\n".join(
            frame.replace(b'"id": "chatcmpl', b'"id": "chatcmpl-%d' % n)
            for n, frame in enumerate(frames)
        )
        return Response(headers=response.headers, body=body, reads=response.reads)


async def test_finding_shows_bytes_and_request() -> None:
    async with serve(Unstable("O")) as url:
        report = await grade(url, model=MODEL, api_key=KEY, dialect="openai", only=("chunks",))
    outcome = next(o for o in report.outcomes if o.rule == "R95")
    assert outcome.verdict == "failed"
    finding = outcome.findings[0]
    assert finding.frame == 1
    assert finding.offset is not None and finding.offset > 100
    assert finding.excerpt.startswith('data: {"object": "chat.completion.chunk"')
    assert finding.curl.startswith(f"curl -N -sS -X POST {url}/v1/chat/completions")
    assert '"Authorization: Bearer $API_KEY"' in finding.curl
    assert KEY not in finding.curl
    assert not report.passed
    assert 0 < report.score < 100


@pytest.mark.parametrize("form", ["text", "json", "junit", "html"])
async def test_reports(form: Format) -> None:
    async with serve(Unstable("O")) as url:
        report = await grade(url, model=MODEL, api_key=KEY, dialect="openai", only=("chunks",))
    text = render(report, form)
    assert "R95" in text
    assert KEY not in text
    match form:
        case "json":
            tree = json.loads(text)
            assert tree["passed"] is False
            assert tree["verdicts"]["failed"] >= 1
            assert {o["rule"] for o in tree["outcomes"]} >= {"R95", "R107"}
        case "junit":
            root = ElementTree.fromstring(text)
            failures = root.findall(".//failure")
            assert any("id was" in (f.get("message") or "") for f in failures)
            assert root.find("testsuite").get("name") == "chunks"  # type: ignore[union-attr]
        case "html":
            assert text.startswith("<!doctype html>")
            assert "<script" not in text
            assert not {"src=", "href=", "@import", "url("} & set(re.findall(r"[@\w]+[=(]?", text))
            assert "curl -N" in text
        case "text":
            assert "score" in text
            assert "byte" in text


async def test_hostile_bytes_are_escaped_in_reports() -> None:
    class Hostile(Ideal):
        def answer(self, request: Request) -> Response:
            response = super().answer(request)
            return Response(
                status=response.status,
                headers=response.headers,
                body=response.body.replace(
                    b'"model": "ideal"', b'"model": 1, "<script>\\u0000": 1'
                ),
                reads=response.reads,
            )

    async with serve(Hostile("O")) as url:
        report = await grade(url, model=MODEL, api_key=KEY, dialect="openai", only=("R90", "R84"))
    assert any(o.verdict == "failed" for o in report.outcomes)
    assert "<script>" not in render(report, "html")
    ElementTree.fromstring(render(report, "junit"))
    json.loads(render(report, "json"))
    render(report, "text")


async def test_unreachable_and_refusing_servers_are_told() -> None:
    with pytest.raises(CannotCheck, match="cannot be reached"):
        await grade("127.0.0.1:9", model="m")
    async with serve(Ideal("O")) as url:
        with pytest.raises(CannotCheck, match="401"):
            await grade(url, model=MODEL, api_key="wrong")
        with pytest.raises(CannotCheck, match="404"):
            await grade(url, model="other", api_key=KEY)


class Silent(Ideal):
    """Says nothing to one request, and hangs up on another."""

    def answer(self, request: Request) -> Response:
        if b'"n": 0' in request.body:
            return Response(status=0, ending="closed by client")
        if b'"no_such_key"' in request.body:
            return Response(status=0, ending="cut")
        return super().answer(request)


async def test_silence_proves_nothing_and_is_told() -> None:
    async with serve(Silent("O")) as url:
        report = await grade(
            url,
            model=MODEL,
            api_key=KEY,
            dialect="openai",
            only=("R15", "R18", "R209"),
            timeout_seconds=1,
        )
    by_rule = {o.rule: o for o in report.outcomes}
    assert (by_rule["R15"].verdict, by_rule["R15"].count) == ("failed", 1)
    assert "the connection was closed" in by_rule["R15"].findings[0].message
    assert by_rule["R18"].verdict == "skipped"
    assert by_rule["R18"].reason == "the request “R18: n is 0” was not answered in time"
    assert by_rule["R209"].verdict == "passed"
    assert report.num_unanswered == 2
    assert "requests, 2 without an answer in" in summary(report)


async def test_a_kept_connection_that_was_closed_is_no_finding() -> None:
    class Once(Ideal):
        hung_up = False

        def answer(self, request: Request) -> Response:
            if b'"no_such_key"' in request.body and not self.hung_up:
                self.hung_up = True
                return Response(status=0, ending="cut")
            return super().answer(request)

    async with serve(Once("O")) as url:
        report = await grade(url, model=MODEL, api_key=KEY, dialect="openai", only=("R15",))
    assert [o.verdict for o in report.outcomes] == ["passed"]
    assert report.num_unanswered == 0


def test_unknown_rules_are_told() -> None:
    with pytest.raises(CannotCheck, match=r"R999.*framing"):
        select_rules(("R999",))
    assert [rule.id for rule in select_rules(("r95", "R95"))] == ["R95"]
    assert select_rules(("tools",)) == GROUPS["tools"]
    assert select_rules(()) == RULES


def test_probes_are_few_and_distinct() -> None:
    for dialect, most in (("O", 190), ("D", 110)):
        names = [probe.name for probe in probes_for(RULES, dialect)]  # type: ignore[arg-type]
        assert len(names) == len(set(names)) < most
    assert len(probes_for(select_rules(("R95",)), "O")) < 12


# ---------------------------------------------------------------- files and exit statuses


def files(tmp_path: Path, frames: list[object], asked: dict[str, object]) -> tuple[Path, Path]:
    stream, request = tmp_path / "stream.sse", tmp_path / "request.json"
    stream.write_bytes(b"".join(sse(frame) for frame in frames))
    request.write_text(json.dumps(asked))
    return stream, request


ASKED: dict[str, object] = {
    "model": MODEL,
    "stream": True,
    "messages": [{"role": "user", "content": "Hi"}],
}


@pytest.mark.parametrize("dialect", ["O", "D"])
def test_good_file_passes(tmp_path: Path, dialect: DialectName) -> None:
    stream, request = files(tmp_path, Answer(dialect, ASKED, "chatcmpl-1").frames(), ASKED)
    report = grade_file(stream, request, mode="strict")
    assert report.dialect == ("openai" if dialect == "O" else "deepinfra")
    assert {o.verdict for o in report.outcomes} == {"passed", "skipped"}
    assert sum(o.verdict == "passed" for o in report.outcomes) > 30


def test_bad_file_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = Answer("O", ASKED, "chatcmpl-1").frames()
    stream, request = files(tmp_path, frames[:-1], ASKED)
    options = CheckOptions(file=str(stream), request=str(request), dialect="openai")
    assert main_check(options) == 1
    assert "R7" in capsys.readouterr().out
    output = tmp_path / "report.json"
    options = CheckOptions(
        file=str(stream), request=str(request), report="json", output=str(output)
    )
    assert main_check(options) == 1
    assert json.loads(output.read_text())["passed"] is False


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = Answer("O", ASKED, "chatcmpl-1").frames()
    frames[1]["obfuscation"] = "x"
    stream, request = files(tmp_path, frames, ASKED)
    good = CheckOptions(file=str(stream), request=str(request), dialect="openai")
    assert main_check(good) == 0
    warned = CheckOptions(
        file=str(stream), request=str(request), dialect="openai", fail_on="warning"
    )
    assert main_check(warned) == 1
    assert main_check(CheckOptions()) == 2
    assert main_check(CheckOptions(file=str(stream))) == 2
    assert main_check(CheckOptions(file=str(tmp_path / "none"), request=str(request))) == 2
    assert main_check(CheckOptions(url="127.0.0.1:9", model="m")) == 2
    nowhere = str(tmp_path / "none" / "report")
    unwritten = CheckOptions(file=str(stream), request=str(request), output=nowhere)
    assert main_check(unwritten) == 2
    assert "cannot be written" in capsys.readouterr().err
