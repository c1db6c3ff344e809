"""R187–R200: moderation results in OpenAI's dialect. Must not know: how texts are scored."""

from collections.abc import Iterable, Iterator

from rejoinder.check.exchange import (
    Chunk,
    Exchange,
    as_list,
    as_object,
    is_number,
)
from rejoinder.check.pairs import both, texts
from rejoinder.check.probes import (
    FIXED,
    MODERATED,
    MODERATED_STREAMED,
    STREAM_USAGE,
    UNARY,
    UNARY_AGAIN,
)
from rejoinder.check.rule import Evidence, Probe, Problem, Skipped, at, rule, whole_rule
from rejoinder.types import JsonObject

HALVES = ("input", "output")
MAPS = ("categories", "category_scores", "category_applied_input_types")
WITH_IMAGES = frozenset(
    {"self-harm", "self-harm/intent", "self-harm/instructions", "sexual", "violence"}
    | {"violence/graphic"}
)


def moderations(x: Exchange) -> list[tuple[Chunk, JsonObject]]:
    """Each moderation object, and the chunk or body it is in."""
    found = [(thing, thing.json.get("moderation")) for thing in x.objects]
    return [(thing, value) for thing, value in found if isinstance(value, dict)]


def halves(x: Exchange) -> Iterator[tuple[Chunk, str, JsonObject]]:
    """Each half that is an object. Raises Skipped if there is none."""
    found = False
    for thing, value in moderations(x):
        for half in HALVES:
            inner = value.get(half)
            if isinstance(inner, dict):
                found = True
                yield thing, half, inner
    if not found:
        raise Skipped


def results(x: Exchange) -> Iterator[tuple[Chunk, str, JsonObject]]:
    """Each result. Raises Skipped if there is none."""
    found = False
    for thing, half, inner in halves(x):
        for result in as_list(inner.get("results")):
            found = True
            yield thing, half, as_object(result)
    if not found:
        raise Skipped


@rule(
    "R187",
    "No moderation unless asked",
    dialect="O",
    says="moderation is absent or null when it was not asked for.",
    how="The key against the request.",
)
def only_when_asked(x: Exchange) -> Iterable[Problem]:
    if x.moderated:
        raise Skipped
    for thing in x.objects:
        if thing.json.get("moderation") is not None:
            yield at(thing, "moderation, which was not asked for")


@rule(
    "R188",
    "One moderation chunk",
    dialect="O",
    on="stream",
    says="If it was asked for, a complete stream has exactly one chunk with moderation.",
    how="Count.",
)
def one_moderation_chunk(x: Exchange) -> Iterable[Problem]:
    if not x.moderated or not x.complete:
        raise Skipped
    found = [chunk for chunk in x.chunks if chunk.json.get("moderation") is not None]
    if not found:
        yield Problem("no chunk with moderation", x.last_frame)
    elif len(found) > 1:
        yield at(found[1], f"{len(found)} chunks with moderation")
    elif not isinstance(found[0].json["moderation"], dict):
        yield at(found[0], "moderation is not an object")


def _lacking_halves(x: Exchange) -> Iterator[Problem]:
    for thing, value in moderations(x):
        for half in HALVES:
            if not isinstance(value.get(half), dict):
                yield at(thing, f"moderation.{half} is {value.get(half, 'missing')!r:.60}")


@rule(
    "R189",
    "Both halves",
    dialect="O",
    on="stream",
    says="The moderation chunk has both input and output, neither null.",
    how="Presence and types.",
)
def both_halves(x: Exchange) -> Iterable[Problem]:
    if not moderations(x):
        raise Skipped
    yield from _lacking_halves(x)


@rule(
    "R190",
    "The moderation chunk has no choices",
    dialect="O",
    on="stream",
    says="The moderation chunk has choices []; moderation on the last content chunk is a warning.",
    how="choices of that chunk.",
)
def no_choices(x: Exchange) -> Iterable[Problem]:
    found = moderations(x)
    if not found:
        raise Skipped
    for thing, _ in found:
        if thing.choices:
            finishing = any(choice.finish for choice in thing.choices)
            level = "lenient" if finishing else "rule"
            yield at(thing, "the moderation chunk has choices", level)  # type: ignore[arg-type]


@rule(
    "R191",
    "Moderation after the finish",
    dialect="O",
    on="stream",
    says="The moderation chunk comes after the last finish_reason.",
    how="Order.",
)
def after_finish(x: Exchange) -> Iterable[Problem]:
    found = moderations(x)
    if not found:
        raise Skipped
    finishes = [p.frame.number for p in x.choice_chunks if p.finish and p.frame]
    for thing, _ in found:
        if finishes and thing.frame and thing.frame.number < max(finishes):
            yield at(thing, "moderation before the last finish_reason")


@rule(
    "R192",
    "Moderation before usage",
    dialect="O",
    on="stream",
    severity="warning",
    says="The moderation chunk comes before the usage chunk, with usage null.",
    how="Order, with include_usage. Its key usage is R126's.",
)
def before_usage(x: Exchange) -> Iterable[Problem]:
    found = moderations(x)
    if not found or not x.includes_usage:
        raise Skipped
    for thing, _ in found:
        if thing.json.get("usage") is not None:
            yield at(thing, "the moderation chunk has usage")
        before = [c for c in x.chunks if c.json.get("usage") is not None and c is not thing]
        if any(c.frame and thing.frame and c.frame.number < thing.frame.number for c in before):
            yield at(thing, "moderation after usage")


_VARIANTS: dict[str, dict[str, type]] = {
    "moderation_results": {"type": str, "model": str, "results": list},
    "error": {"type": str, "code": str, "message": str},
}


@rule(
    "R193",
    "Results or an error",
    dialect="O",
    says="A half is moderation_results with model and results, or an error with code and message.",
    how="The type and exactly that variant's fields.",
)
def variants(x: Exchange) -> Iterable[Problem]:
    for thing, half, inner in halves(x):
        kind = inner.get("type")
        fields = _VARIANTS.get(kind) if isinstance(kind, str) else None
        if fields is None:
            yield at(thing, f"moderation.{half}.type is {kind!r}")
            continue
        for name, of in fields.items():
            if not isinstance(inner.get(name), of):
                yield at(thing, f"moderation.{half}.{name} is {inner.get(name, 'missing')!r:.60}")
        if extra := sorted(inner.keys() - fields.keys()):
            yield at(thing, f"moderation.{half} has {', '.join(extra)}")


_RESULT: dict[str, type] = {
    "type": str,
    "model": str,
    "flagged": bool,
    "categories": dict,
    "category_scores": dict,
    "category_applied_input_types": dict,
}


@rule(
    "R194",
    "Results are whole",
    dialect="O",
    says="Each result has its six fields, and the type moderation_result.",
    how="Presence and types.",
)
def whole_results(x: Exchange) -> Iterable[Problem]:
    for thing, half, result in results(x):
        for name, of in _RESULT.items():
            if not isinstance(result.get(name), of):
                yield at(
                    thing, f"a result of {half} has {name} {result.get(name, 'missing')!r:.60}"
                )
        if result.get("type", "moderation_result") not in (
            "moderation_result",
            None,
        ) and isinstance(result["type"], str):
            yield at(thing, f"a result of {half} has the type {result['type']!r}")


@rule(
    "R195",
    "Results add up",
    dialect="O",
    says="The three maps have the same keys; scores are 0 … 1; flagged is whether any category is "
    "true.",
    how="Arithmetic.",
)
def results_add_up(x: Exchange) -> Iterable[Problem]:
    for thing, half, result in results(x):
        maps = [result.get(name) for name in MAPS]
        if not all(isinstance(one, dict) for one in maps):
            continue
        categories, scores, _ = (as_object(one) for one in maps)
        if len({frozenset(as_object(one)) for one in maps}) > 1:
            yield at(thing, f"the maps of a result of {half} have different keys")
        for name, score in scores.items():
            if not isinstance(score, int | float) or not is_number(score) or not 0 <= score <= 1:
                yield at(thing, f"the score of {name} is {score!r}")
        for name, value in categories.items():
            if not isinstance(value, bool):
                yield at(thing, f"the category {name} is {value!r}")
        flagged = result.get("flagged")
        if isinstance(flagged, bool) and flagged != any(v is True for v in categories.values()):
            yield at(thing, f"flagged is {flagged}; the categories say otherwise")


@rule(
    "R196",
    "Applied input types",
    dialect="O",
    severity="warning",
    says="Applied input types are lists that are not empty; image only where a category knows "
    "images and the input has one; output is text.",
    how="Cross-check against the request.",
)
def applied_types(x: Exchange) -> Iterable[Problem]:
    has_image = "image_url" in str(x.asked.get("messages"))
    for thing, half, result in results(x):
        for name, kinds in as_object(result.get("category_applied_input_types")).items():
            listed = as_list(kinds)
            if not listed or any(kind not in ("text", "image") for kind in listed):
                yield at(thing, f"the applied types of {name} are {kinds!r:.60}")
            elif "image" in listed and not (half == "input" and has_image and name in WITH_IMAGES):
                yield at(thing, f"the {half} applied image to {name}")


@rule(
    "R197",
    "A failed moderation fails nothing",
    dialect="O",
    kind="P",
    says="A moderation that failed leaves the completion alone: 200, with the error variant.",
    how="Answers with an error half have choices that finished. No fault can be made from outside.",
)
def failure_is_harmless(x: Exchange) -> Iterable[Problem]:
    failed = [half for _, half, inner in halves(x) if inner.get("type") == "error"]
    if not failed:
        raise Skipped
    if not x.choices or not all(choice.finish for choice in x.choices):
        yield Problem("moderation failed, and a choice has not finished")


@rule(
    "R198",
    "Moderation in a body",
    dialect="O",
    on="body",
    says="A unary answer has moderation at its top, with both halves.",
    how="Presence, if it was asked for.",
)
def in_body(x: Exchange) -> Iterable[Problem]:
    if not x.moderated:
        raise Skipped
    if not moderations(x):
        yield Problem("the body has no moderation")
    yield from _lacking_halves(x)


@whole_rule(
    "R199",
    "Scores change nothing",
    dialect="O",
    says="The mode score never changes content or finish_reason.",
    how="The same request with and without moderation, streamed and not.",
    probes=(UNARY, UNARY_AGAIN, MODERATED, STREAM_USAGE, MODERATED_STREAMED),
)
def scores_change_nothing(e: Evidence) -> Iterable[Problem]:
    for first, second in ((UNARY, MODERATED), (STREAM_USAGE, MODERATED_STREAMED)):
        if e.find(first.name) is None or e.find(second.name) is None:
            continue
        one, other = both(e, first, second)
        if one.complete and other.complete and texts(one) != texts(other):
            yield Problem(f"{texts(one)!r:.150} became {texts(other)!r:.150}", None, other)


_BLOCK = Probe(
    name="R200: moderation, block",
    body={
        **FIXED,
        "moderation": {
            "model": "omni-moderation-latest",
            "policy": {"input": {"mode": "block"}, "output": {"mode": "block"}},
        },
    },
    dialects=("O",),
)


@whole_rule(
    "R200",
    "What block does",
    dialect="O",
    severity="warning",
    says="block on flagged content either changes nothing, or empties it with the finish_reason "
    "content_filter (A8).",
    how="A request with block; content_filter goes with flagged output and without content.",
    probes=(_BLOCK,),
)
def block(e: Evidence) -> Iterable[Problem]:
    x = e.get(_BLOCK.name)
    if not x.ok:
        yield Problem(x.how_answered, None, x)
        return
    for choice in x.choices:
        if choice.finish == "content_filter" and choice.content:
            yield Problem("content_filter, and content", choice.frame, x)
