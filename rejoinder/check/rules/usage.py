"""R123–R131: which chunk carries usage. Must not know: what the counters say."""

from collections.abc import Iterable

from rejoinder.check.exchange import Exchange, as_int
from rejoinder.check.rule import Problem, Skipped, at, rule


@rule(
    "R123",
    "No usage unless asked",
    dialect="O",
    on="stream",
    says="Without include_usage:true no chunk has the key usage.",
    how="The keys of each chunk.",
)
def no_usage_unasked(x: Exchange) -> Iterable[Problem]:
    if x.includes_usage:
        raise Skipped
    for chunk in x.chunks:
        if "usage" in chunk.json:
            yield at(chunk, "usage, which was not asked for")
            return


@rule(
    "R124",
    "Usage on the last chunk",
    dialect="O",
    on="stream",
    says="With include_usage the last chunk before [DONE] has usage and choices [].",
    how="The last chunk of a complete stream.",
)
def usage_last(x: Exchange) -> Iterable[Problem]:
    if not x.includes_usage or not x.complete or not x.chunks:
        raise Skipped
    last = x.chunks[-1]
    if not last.json.get("usage"):
        yield at(last, "the last chunk has no usage")
    elif last.choices:
        yield at(last, "the usage chunk has choices")


@rule(
    "R125",
    "Usage once",
    dialect="O",
    on="stream",
    says="With include_usage usage is not null on the last chunk only.",
    how="Earlier chunks with usage.",
)
def usage_once(x: Exchange) -> Iterable[Problem]:
    if not x.includes_usage:
        raise Skipped
    for chunk in x.chunks[:-1]:
        if chunk.json.get("usage") is not None:
            yield at(chunk, "usage on a chunk that is not the last")
            return


@rule(
    "R126",
    "usage:null before",
    dialect="O",
    on="stream",
    severity="warning",
    strict="error",
    says="With include_usage every other chunk has usage: null. Omission was seen live in 2024.",
    how="The key in each chunk but the last. An error in strict mode.",
)
def usage_null_before(x: Exchange) -> Iterable[Problem]:
    if not x.includes_usage:
        raise Skipped
    for chunk in x.chunks[:-1]:
        if "usage" not in chunk.json:
            yield at(chunk, "no key usage")
            return


@rule(
    "R127",
    "Usage with the finish",
    dialect="D",
    on="stream",
    says="By default usage is on the last chunk, the one with the last finish_reason.",
    how="The last chunk of a complete stream. A chunk of its own is a warning in live mode (A27).",
)
def usage_with_finish(x: Exchange) -> Iterable[Problem]:
    if not x.includes_usage or not x.complete or not x.chunks:
        raise Skipped
    last = x.chunks[-1]
    if not last.json.get("usage"):
        yield at(last, "the last chunk has no usage")
    elif last.choices and not any(choice.finish for choice in last.choices):
        yield at(last, "usage is not on the chunk with the finish_reason")


@rule(
    "R128",
    "include_usage:false",
    dialect="D",
    on="stream",
    kind="P",
    says="With include_usage:false no chunk has usage.",
    how="The keys of each chunk.",
)
def usage_off(x: Exchange) -> Iterable[Problem]:
    if x.includes_usage or x.continuous_usage:
        raise Skipped
    for chunk in x.chunks:
        if "usage" in chunk.json:
            yield at(chunk, "usage, which was switched off")
            return


@rule(
    "R129",
    "Running usage",
    dialect="D",
    on="stream",
    kind="P",
    says="With continuous_usage_stats usage is on every chunk and never falls; the last is the "
    "final one.",
    how="completion_tokens and total_tokens of each chunk.",
)
def running_usage(x: Exchange) -> Iterable[Problem]:
    if not x.continuous_usage or not x.includes_usage:
        raise Skipped
    before = -1
    for chunk in x.chunks:
        usage = chunk.json.get("usage")
        if not isinstance(usage, dict):
            yield at(chunk, "no usage")
            continue
        completion = as_int(usage.get("completion_tokens"))
        if completion < before:
            yield at(chunk, f"completion_tokens fell from {before} to {completion}")
        before = completion


@rule(
    "R130",
    "Usage once",
    dialect="D",
    on="stream",
    says="Without continuous statistics exactly one chunk has usage.",
    how="Count, in a complete stream.",
)
def one_usage(x: Exchange) -> Iterable[Problem]:
    if x.continuous_usage or not x.includes_usage:
        raise Skipped
    have = [chunk for chunk in x.chunks if "usage" in chunk.json]
    if len(have) > 1:
        yield at(have[0], f"usage on {len(have)} chunks")


@rule(
    "R131",
    "No usage after a failure",
    dialect="B",
    on="stream",
    severity="warning",
    says="There is no final usage if an error interrupted the stream.",
    how="usage in a stream with an error event, running usage aside.",
)
def no_usage_after_failure(x: Exchange) -> Iterable[Problem]:
    if not x.error_frames or x.continuous_usage:
        raise Skipped
    for chunk in x.chunks:
        if chunk.json.get("usage") is not None:
            yield at(chunk, "usage in a stream that failed")
