"""R201–R218: error bodies and headers. Must not know: what was wrong with a request."""

import re
from collections.abc import Iterable

from rejoinder.check.exchange import Exchange, as_object, as_text
from rejoinder.check.probes import LIMIT, UNARY
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, rule, whole_rule

_BAD = Probe(name="a bad temperature", body={"temperature": 9})


def errors(e: Evidence) -> list[Exchange]:
    found = [x for x in e.exchanges if x.response.status >= 400]
    if not found:
        raise Skipped("no error was seen")
    return found


@rule(
    "R201",
    "The error object",
    dialect="O",
    on="error",
    kind="P",
    says='An error is {"error": {message, type, param, code}}: all four keys, message and type '
    "strings, param and code strings or null.",
    how="Every answer with a status of 400 or more.",
)
def error_object(x: Exchange) -> Iterable[Problem]:
    if not x.is_api:
        raise Skipped
    error = as_object(x.body).get("error")
    if not isinstance(error, dict):
        yield Problem(f"no error object: {x.response.body[:80]!r}")
        return
    for key in ("message", "type", "param", "code"):
        if key not in error:
            yield Problem(f"error has no {key}")
    for key in ("message", "type"):
        if key in error and not as_text(error[key]):
            yield Problem(f"error.{key} is {error[key]!r}")
    for key in ("param", "code"):
        if not isinstance(error.get(key), str | None):
            yield Problem(f"error.{key} is {error[key]!r}")


@rule(
    "R202",
    "The error object",
    dialect="D",
    on="error",
    kind="P",
    says="An error is JSON with error, an object with a message, or detail (A20).",
    how="Every answer with a status of 400 or more.",
)
def error_object_d(x: Exchange) -> Iterable[Problem]:
    if not x.is_api:
        raise Skipped
    body = as_object(x.body)
    if not as_text(as_object(body.get("error")).get("message")) and not body.get("detail"):
        yield Problem(f"no error with a message: {x.response.body[:80]!r}")


_NO_KEY = Probe(name="no key", body={LIMIT: 1}, key="none")
_WRONG_KEY = Probe(name="a wrong key", body={LIMIT: 1}, key="wrong")


def _keys_matter(e: Evidence) -> tuple[Exchange, Exchange]:
    none, wrong = e.get(_NO_KEY.name), e.get(_WRONG_KEY.name)
    if none.ok and wrong.ok and not e.api_key:
        raise Skipped("the server asks for no key")
    return none, wrong


@whole_rule(
    "R203",
    "A bad key",
    dialect="O",
    says="No key or a bad one is 401; a bad one has the code invalid_api_key.",
    how="Both. Skipped where the server asks for no key.",
    probes=(_NO_KEY, _WRONG_KEY),
)
def bad_key(e: Evidence) -> Iterable[Problem]:
    none, wrong = _keys_matter(e)
    for x in (none, wrong):
        if x.response.status != 401:
            yield Problem(f"{x.probe}: {x.how_answered} instead of 401", None, x)
    code = as_object(as_object(wrong.body).get("error")).get("code")
    if wrong.response.status == 401 and code != "invalid_api_key":
        yield Problem(f"a wrong key has the code {code!r}", None, wrong)


@whole_rule(
    "R204",
    "A bad key",
    dialect="D",
    says="A bad key is 401; an empty account is 402.",
    how="A wrong key. An empty account cannot be shown from outside. Skipped where no key is "
    "asked for.",
    probes=(_NO_KEY, _WRONG_KEY),
)
def bad_key_d(e: Evidence) -> Iterable[Problem]:
    _, wrong = _keys_matter(e)
    if wrong.response.status != 401:
        yield Problem(f"{wrong.how_answered} instead of 401", None, wrong)


def _of_status(e: Evidence, *statuses: int) -> list[Exchange]:
    found = [x for x in e.exchanges if x.response.status in statuses]
    if not found:
        raise Skipped(f"no answer with {' or '.join(map(str, statuses))} was seen")
    return found


def _code(x: Exchange) -> str:
    return as_text(as_object(as_object(x.body).get("error")).get("code"))


@whole_rule(
    "R205",
    "Rate limits",
    dialect="B",
    says="A rate limit is 429; in OpenAI's dialect of the type requests or tokens, with the code "
    "rate_limit_exceeded and param null.",
    how="Every 429 that was seen and is no quota and no overload.",
)
def rate_limit(e: Evidence) -> Iterable[Problem]:
    for x in _of_status(e, 429):
        error = as_object(as_object(x.body).get("error"))
        if e.dialect == "D":
            if not re.search("rate|busy|limit|later", as_text(error.get("message")), re.I):
                yield Problem(f"the message is {error.get('message')!r}", None, x)
        elif _code(x) == "rate_limit_exceeded":
            if error.get("type") not in ("requests", "tokens") or error.get("param") is not None:
                yield Problem(f"type {error.get('type')!r}, param {error.get('param')!r}", None, x)
        elif not _code(x):
            yield Problem("429 without a code", None, x)


@whole_rule(
    "R206",
    "Out of quota",
    dialect="O",
    says="Out of quota is 429 with the code insufficient_quota.",
    how="Every answer with that type or code, if one was seen.",
)
def out_of_quota(e: Evidence) -> Iterable[Problem]:
    found = [
        x
        for x in e.exchanges
        if "insufficient_quota"
        in (_code(x), as_object(as_object(x.body).get("error")).get("type") if not x.ok else "")
    ]
    if not found:
        raise Skipped("no account without quota was at hand")
    for x in found:
        if x.response.status != 429 or _code(x) != "insufficient_quota":
            yield Problem(f"{x.response.status} with the code {_code(x)!r}", None, x)


@whole_rule(
    "R207",
    "Retry-After",
    dialect="B",
    severity="warning",
    says="429 and 503 carry Retry-After, whole seconds of 1 or more.",
    how="The header of each that was seen; a spent quota needs none.",
)
def retry_after(e: Evidence) -> Iterable[Problem]:
    for x in _of_status(e, 429, 503):
        value = x.header("retry-after")
        if _code(x) != "insufficient_quota" and not re.fullmatch(r"[1-9]\d*", value or ""):
            yield Problem(_shown(x, "retry-after"), None, x)


@whole_rule(
    "R208",
    "Server errors",
    dialect="B",
    says="The body of a 5xx is an error object too, of the type server_error.",
    how="Every 5xx that was seen.",
)
def server_errors(e: Evidence) -> Iterable[Problem]:
    found = [x for x in e.exchanges if x.response.status >= 500]
    if not found:
        raise Skipped("no answer with 5xx was seen")
    for x in found:
        kind = as_text(as_object(as_object(x.body).get("error")).get("type"))
        if not kind.endswith("error") and e.dialect == "O":
            yield Problem(f"{x.response.status} of the type {kind!r}", None, x)
        elif e.dialect == "D" and not isinstance(x.body, dict):
            yield Problem(f"{x.response.status} without a JSON body", None, x)


@whole_rule(
    "R209",
    "x-request-id",
    dialect="O",
    kind="T",
    says="Every answer has an x-request-id, unique.",
    how="The header of every answer.",
    probes=(UNARY, _BAD),
)
def request_id(e: Evidence) -> Iterable[Problem]:
    seen: dict[str, str] = {}
    lacking = [x for x in e.exchanges if x.response.status and not x.header("x-request-id")]
    if lacking:
        yield Problem(f"{len(lacking)} answers without x-request-id", None, lacking[0])
    for x in e.exchanges:
        value = x.header("x-request-id")
        if value and seen.setdefault(value, x.probe) != x.probe:
            yield Problem(f"{value!r} was also that of “{seen[value]}”", None, x)


_VERSION = "2020-10-01"


def _shown(x: Exchange, name: str) -> str:
    value = x.header(name)
    return f"there is no {name}" if value is None else f"{name} is {value!r}"


@rule(
    "R210",
    "openai-… headers",
    dialect="O",
    severity="warning",
    says="openai-processing-ms is an integer, openai-version 2020-10-01, and there is an "
    "openai-organization.",
    how="The headers.",
)
def openai_headers(x: Exchange) -> Iterable[Problem]:
    if not re.fullmatch(r"\d+", x.header("openai-processing-ms") or ""):
        yield Problem(_shown(x, "openai-processing-ms"))
    if x.header("openai-version") != _VERSION:
        yield Problem(_shown(x, "openai-version"))
    if x.header("openai-organization") is None:
        yield Problem("there is no openai-organization")


_DURATION = re.compile(r"(?=.)(\d+h)?(\d+m(?!s))?(\d+(\.\d+)?s)?(\d+ms)?")


@rule(
    "R211",
    "x-ratelimit-… headers",
    dialect="O",
    severity="warning",
    says="x-ratelimit-{limit,remaining,reset}-{requests,tokens} are on completions; reset is a "
    "duration such as 1s or 6m0s.",
    how="The headers.",
)
def ratelimit_headers(x: Exchange) -> Iterable[Problem]:
    for what in ("requests", "tokens"):
        for kind in ("limit", "remaining", "reset"):
            name = f"x-ratelimit-{kind}-{what}"
            value = x.header(name)
            form = _DURATION if kind == "reset" else re.compile(r"-?\d+")
            if not form.fullmatch(value or ""):
                yield Problem(_shown(x, name))


_STATUSES = (400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 422, 429)


@whole_rule(
    "R212",
    "Known statuses",
    dialect="B",
    says="Statuses map to the classes that clients know: 400, 401, 403, 404, 409, 422, 429, 5xx.",
    how="Every error that was seen; 402, 405, 408, 413 and 415 have their place too.",
    probes=(_BAD,),
)
def known_statuses(e: Evidence) -> Iterable[Problem]:
    for x in errors(e):
        if x.response.status < 500 and x.response.status not in _STATUSES:
            yield Problem(x.how_answered, None, x)


@whole_rule(
    "R213",
    "Retried statuses are not for client errors",
    dialect="B",
    severity="warning",
    says="408, 409, 429 and 5xx are retried by SDKs: they are not for permanent client errors.",
    how="Every request that must be refused.",
    probes=(_BAD,),
)
def not_retried(e: Evidence) -> Iterable[Problem]:
    for x in e.exchanges:
        permanent = re.match(r"R(1[3-9]|[2-6]\d): |a bad |a wrong |unknown model", x.probe)
        status = x.response.status
        if permanent and (status in (408, 409) or status >= 500):
            yield Problem(f"“{x.probe}” was answered with {status}", None, x)


_WRONG_PATH = Probe(name="a wrong path", method="GET", path="/no/such/path")
_WRONG_METHOD = Probe(name="a wrong method", method="PUT", body={})


@whole_rule(
    "R214",
    "Wrong paths and methods",
    dialect="O",
    severity="warning",
    says="A wrong path is 404, a wrong method 405, each with an error object.",
    how="GET of a path that does not exist, PUT of completions.",
    probes=(_WRONG_PATH, _WRONG_METHOD),
)
def wrong_paths(e: Evidence) -> Iterable[Problem]:
    for probe, wanted in ((_WRONG_PATH, 404), (_WRONG_METHOD, 405)):
        x = e.get(probe.name)
        if x.response.status != wanted:
            yield Problem(f"{probe.name}: {x.response.status} instead of {wanted}", None, x)
        elif not isinstance(as_object(x.body).get("error"), dict):
            yield Problem(f"{probe.name}: no error object", None, x)


_LEAK = re.compile(
    r"Traceback \(most recent|File \\?\"[^\"]+\", line \d+|\bat [\w.$]+\([\w]+\.java:\d+\)|"
    r"/(?:usr|home|opt|root|app)/[\w./-]+\.(?:py|rs|go|js|cpp)\b|site-packages|node_modules/"
)


@rule(
    "R215",
    "Errors leak nothing",
    dialect="B",
    on="any",
    kind="P",
    says="An error never shows a stack trace, a path, or a whole key.",
    how="A search in every error body and error event, also for the key that was sent.",
)
def errors_leak_nothing(x: Exchange) -> Iterable[Problem]:
    texts = [(frame.raw, frame) for frame in x.error_frames] if x.is_stream else []
    if x.response.status >= 400:
        texts = [(x.response.body, None)]  # type: ignore[list-item]
    if not texts:
        raise Skipped
    for raw, frame in texts:
        text = raw.decode("utf-8", "replace")
        if match := _LEAK.search(text):
            yield Problem(f"it shows {match[0]!r}", frame)
        key = x.sent_key
        if len(key) >= 12 and key in text:
            yield Problem("it shows the whole key", frame)


@whole_rule(
    "R216",
    "Too many at once",
    dialect="D",
    says="More than 200 requests at once (configurable) are 429 at once, not queued for ever.",
    how="Only with the load option: 300 requests at once. Each ends within a minute, with 200 or "
    "429.",
)
def too_many(e: Evidence) -> Iterable[Problem]:
    found = [x for x in e.exchanges if x.probe.startswith("load ")]
    if not found:
        raise Skipped("load is made only when asked for")
    for x in found:
        if x.response.status not in (200, 429):
            yield Problem(x.how_answered, None, x)


@whole_rule(
    "R217",
    "flex waits",
    dialect="D",
    severity="warning",
    says="A flex request for a busy model waits up to ten minutes, then runs or is 429.",
    how="Only under load: flex requests end with 200 or 429.",
)
def flex_waits(e: Evidence) -> Iterable[Problem]:
    yield from _flex(e)


@whole_rule(
    "R218",
    "flex without capacity",
    dialect="O",
    severity="warning",
    says="flex without capacity is 429 with a code of its own.",
    how="Only under load: flex requests end with 200, or 429 with a code.",
)
def flex_without_capacity(e: Evidence) -> Iterable[Problem]:
    yield from _flex(e)


def _flex(e: Evidence) -> Iterable[Problem]:
    found = [x for x in e.exchanges if x.probe.startswith("load ")]
    found = [x for x in found if x.asked.get("service_tier") == "flex"]
    if not found:
        raise Skipped("load is made only when asked for")
    for x in found:
        if x.response.status not in (200, 429):
            yield Problem(x.how_answered, None, x)
        elif x.response.status == 429 and e.dialect == "O" and not _code(x):
            yield Problem("429 without a code", None, x)
