"""R219–R225: repetition, stored completions, models, and what an SDK makes of a stream.

Must not know: single chunks.
"""

from collections.abc import Iterable

from rejoinder.check.exchange import Exchange, as_list, as_object, as_text
from rejoinder.check.pairs import texts
from rejoinder.check.probes import LIMIT, MANY, MODELS, OTHER_SEED, SEEDED, SEEDED_AGAIN
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, rule, whole_rule
from rejoinder.check.sdk import CannotMerge, fold


@whole_rule(
    "R219",
    "The same seed, the same output",
    dialect="O",
    severity="warning",
    kind="E",
    says="The same seed, parameters and system_fingerprint give the same output, at best effort.",
    how="The same request twice.",
    probes=(SEEDED, SEEDED_AGAIN),
)
def same_seed(e: Evidence) -> Iterable[Problem]:
    one, other = e.answer(SEEDED.name), e.answer(SEEDED_AGAIN.name)
    prints = [as_object(x.body).get("system_fingerprint") for x in (one, other)]
    if prints[0] == prints[1] and texts(one) != texts(other):
        yield Problem(f"{texts(one)!r:.150}, then {texts(other)!r:.150}", None, other)


@whole_rule(
    "R220",
    "Choices differ",
    dialect="B",
    kind="E",
    says="With n over 1 and a temperature the choices differ from each other.",
    how="Three choices of 16 tokens at temperature 1. Skipped where another seed changes nothing.",
    probes=(MANY, SEEDED, OTHER_SEED),
)
def choices_differ(e: Evidence) -> Iterable[Problem]:
    if texts(e.answer(SEEDED.name)) == texts(e.answer(OTHER_SEED.name)):
        raise Skipped("another seed gives the same answer: the model leaves nothing to chance")
    x = e.answer(MANY.name)
    contents = [choice.content for choice in x.choices]
    if len(contents) > 1 and len(set(contents)) == 1:
        yield Problem(f"all {len(contents)} choices are {contents[0]!r:.80}", None, x)


_STORE = Probe(
    name="store",
    body={"store": True, "metadata": {"rejoinder": "check"}, LIMIT: 4},
    dialects=("O",),
)
_NOT_STORED = Probe(name="not stored", body={LIMIT: 4, "store": False}, dialects=("O",))


def _on_stored(name: str, after: Probe, method: str = "GET", **more: object) -> Probe:
    return Probe(
        name=name,
        method=method,
        path="/chat/completions/{store}",
        after=(_STORE.name, after.name),
        dialects=("O",),
        body=more.get("body"),  # type: ignore[arg-type]
    )


_GET = _on_stored("stored: get", _STORE)
_LIST = Probe(
    name="stored: list",
    method="GET",
    path="/chat/completions?metadata[rejoinder]=check",
    after=(_STORE.name,),
    dialects=("O",),
)
_UPDATE = _on_stored("stored: update", _LIST, "POST", body={"metadata": {"rejoinder": "checked"}})
_GET_UPDATED = _on_stored("stored: get updated", _UPDATE)
_DELETE = _on_stored("stored: delete", _GET_UPDATED, "DELETE")
_GET_DELETED = _on_stored("stored: get deleted", _DELETE)
_GET_NOT_STORED = Probe(
    name="stored: get what was not stored",
    method="GET",
    path="/chat/completions/{not stored}",
    after=(_NOT_STORED.name,),
    dialects=("O",),
)


def _stored(e: Evidence) -> Exchange:
    x = e.answer(_STORE.name)
    if e.get(_GET.name).response.status in (405, 501):
        raise Skipped("the server keeps no completions")
    return x


@whole_rule(
    "R221",
    "Stored completions",
    dialect="O",
    says="store:true makes GET by id return the completion; without it that is 404.",
    how="Both.",
    probes=(_STORE, _NOT_STORED, _GET, _GET_NOT_STORED),
)
def stored_completions(e: Evidence) -> Iterable[Problem]:
    x, got = _stored(e), e.get(_GET.name)
    if not got.ok:
        yield Problem(f"GET {got.how_answered}", None, got)
    elif as_object(got.body).get("id") != as_object(x.body).get("id"):
        yield Problem("GET returned another id", None, got)
    elif as_object(got.body).get("choices") != as_object(x.body).get("choices"):
        before, after = _contents(x), _contents(got)
        if before != after:
            yield Problem(f"GET returned {after!r:.100}, the answer was {before!r:.100}", None, got)
    other = e.find(_GET_NOT_STORED.name)
    if other is not None and other.response.status != 404:
        yield Problem(f"what was not stored: {other.response.status}", None, other)


def _contents(x: Exchange) -> list[object]:
    choices = [as_object(c) for c in as_list(as_object(x.body).get("choices"))]
    return [as_object(choice.get("message")).get("content") for choice in choices]


@whole_rule(
    "R222",
    "Changing stored completions",
    dialect="O",
    says="POST on a stored id changes its metadata only; DELETE returns "
    "chat.completion.deleted with deleted:true.",
    how="Both, and GET after each.",
    probes=(_STORE, _GET, _LIST, _UPDATE, _GET_UPDATED, _DELETE, _GET_DELETED),
)
def changing_stored(e: Evidence) -> Iterable[Problem]:
    _stored(e)
    updated, got = e.get(_UPDATE.name), e.get(_GET_UPDATED.name)
    if not updated.ok:
        yield Problem(f"POST {updated.how_answered}", None, updated)
    elif as_object(got.body).get("metadata") != {"rejoinder": "checked"}:
        yield Problem("after POST there is another metadata", None, got)
    elif _contents(got) != _contents(e.get(_GET.name)):
        yield Problem("POST changed more than metadata", None, updated)
    deleted = e.get(_DELETE.name)
    body = as_object(deleted.body)
    if body.get("object") != "chat.completion.deleted" or body.get("deleted") is not True:
        yield Problem(f"DELETE returned {deleted.response.body[:100]!r}", None, deleted)
    if e.get(_GET_DELETED.name).response.status != 404:
        yield Problem("GET after DELETE is not 404", None, e.get(_GET_DELETED.name))


@whole_rule(
    "R223",
    "Listing stored completions",
    dialect="O",
    says="The list has object list, first_id and last_id of its data, and has_more; it filters by "
    "metadata.",
    how="A list by metadata after one was stored.",
    probes=(_STORE, _GET, _LIST),
)
def listing_stored(e: Evidence) -> Iterable[Problem]:
    stored, x = _stored(e), e.get(_LIST.name)
    body = as_object(x.body)
    data = [as_object(item) for item in as_list(body.get("data"))]
    if not x.ok or body.get("object") != "list":
        yield Problem(f"{x.how_answered}, object {body.get('object')!r}", None, x)
        return
    ids = [item.get("id") for item in data]
    if as_object(stored.body).get("id") not in ids and body.get("has_more") is not True:
        yield Problem("what was stored is not in the list", None, x)
    if ids and (body.get("first_id"), body.get("last_id")) != (ids[0], ids[-1]):
        yield Problem("first_id and last_id are not those of the data", None, x)
    if not isinstance(body.get("has_more"), bool):
        yield Problem(f"has_more is {body.get('has_more')!r}", None, x)
    if len(ids) > 20:
        yield Problem(f"{len(ids)} items; the limit is 20 by default", None, x)
    created = [item.get("created") for item in data]
    numbers = [value for value in created if isinstance(value, int)]
    if numbers != sorted(numbers):
        yield Problem("the list is not ascending", None, x)
    if any(as_object(item.get("metadata")).get("rejoinder") != "check" for item in data):
        yield Problem("the list holds items with other metadata", None, x)


@whole_rule(
    "R224",
    "Models are listed",
    dialect="B",
    says="/models lists every model that completions accept.",
    how="The model under test is in the list, or is an alias that answers under a listed name.",
    probes=(MODELS,),
)
def models_listed(e: Evidence) -> Iterable[Problem]:
    x = e.get(MODELS.name)
    if not x.ok:
        yield Problem(x.how_answered, None, x)
        return
    body = as_object(x.body)
    ids = [as_object(item).get("id") for item in as_list(body.get("data"))]
    served = {thing.json.get("model") for a in e.exchanges if a.is_answer for thing in a.objects}
    if e.model not in ids and not served & set(ids):
        yield Problem(f"{e.model!r} is not in the list", None, x)
    if body.get("object") != "list":
        yield Problem(f"object is {body.get('object')!r}", None, x)


@rule(
    "R225",
    "SDKs can fold the stream",
    dialect="O",
    on="stream",
    kind="P",
    says="What an SDK accumulates from a stream is the unary message.",
    how="The merge rule of the SDKs, run on the chunks: role, texts and calls come out as they "
    "went in. That they are the unary ones is R86's and R149's.",
)
def sdk_fold(x: Exchange) -> Iterable[Problem]:
    if not x.complete:
        raise Skipped
    try:
        messages = fold(x.chunks)
    except CannotMerge as error:
        yield Problem(f"an SDK fails on this stream: {error}")
        return
    for choice in x.choices:
        message = messages.get(choice.index, {})
        if message.get("role") != (choice.role or None):
            yield Problem(f"the role becomes {message.get('role')!r}", choice.frame)
        if as_text(message.get("content")) != choice.content:
            yield Problem(f"the content becomes {message.get('content')!r:.80}", choice.frame)
        found = [as_object(call) for call in as_list(message.get("tool_calls"))]
        for call, view in zip(found, choice.calls, strict=False):
            inner = as_object(call.get("function")) or as_object(call.get("custom"))
            if (as_text(call.get("id")), as_text(inner.get("name"))) != (view.id, view.name):
                yield Problem(f"a call becomes {call!r:.120}", choice.frame)
