"""What a provider's stream may do wrong and still be read, by kind, with the rule it breaks.

The lenient decoder counts these; the checker reports them. This module must not know: how any of
them is repaired.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from msgspec import Struct

__all__ = ["DEVIATIONS", "Deviation", "DeviationKind", "Deviations", "Observe"]


class DeviationKind(Struct, frozen=True):
    """`rule` of the contract that is broken; `repair`: what the decoder makes of it."""

    rule: str
    repair: str


class Deviation(Struct, frozen=True):
    """One occurrence. `detail` quotes names and numbers of the stream, never its text."""

    kind: str
    rule: str
    detail: str


Observe: TypeAlias = Callable[[Deviation], None]

DEVIATIONS: Mapping[str, DeviationKind] = MappingProxyType(
    {
        # bytes and frames
        "invalid_utf8": DeviationKind("R3", "the byte becomes U+FFFD"),
        "json_constant": DeviationKind("R155", "NaN and Infinity are read as numbers"),
        "json_control": DeviationKind("R6", "control characters in a string are kept"),
        "split_surrogate": DeviationKind("R116", "the halves are joined; a lone half is U+FFFD"),
        "split_character": DeviationKind("R116", "U+FFFD again in the next chunk is left out"),
        "heartbeat_data": DeviationKind("R8", "a data payload that is a comment is skipped"),
        "ignored_payload": DeviationKind("R6", "an object that says nothing is skipped"),
        "several_chunks": DeviationKind("R6", "an array of chunks is read as that many"),
        "unary_body": DeviationKind("R1", "one JSON completion is replayed as a stream"),
        "json_lines": DeviationKind("R4", "one JSON object a line is read as a stream"),
        "missing_done": DeviationKind("R7", "the end of the body ends a finished answer"),
        "after_done": DeviationKind("R7", "what follows [DONE] is skipped"),
        # choices
        "choices_object": DeviationKind("R90", "a lone choice is read as a list of one"),
        "choice_index": DeviationKind("R101", "the only choice asked for is choice 0"),
        "choice_order": DeviationKind("R100", "a choice waits until those before it have begun"),
        "extra_choice": DeviationKind("R101", "choices that were not asked for are dropped"),
        "delta_missing": DeviationKind("R91", "a choice without a delta has an empty one"),
        "delta_elsewhere": DeviationKind("R91", "`message` or `text` is read as the delta"),
        "role_missing": DeviationKind("R102", "the answer is the assistant's"),
        "role_repeated": DeviationKind("R103", "the role is told once"),
        "several_payloads": DeviationKind("R110", "reasoning, content, refusal, calls, in order"),
        "content_parts": DeviationKind("R74", "text parts are joined, thinking parts set apart"),
        "reasoning_mirrored": DeviationKind("R110", "one source of reasoning text per delta"),
        "refusal_beside_content": DeviationKind("R111", "the refusal continues the content"),
        "refusal_beside_calls": DeviationKind(
            "R73", "a refusal after calls is content, a call after a refusal is dropped"
        ),
        # finish
        "missing_finish": DeviationKind("R107", "[DONE] after an answer ends it"),
        "finish_repeated": DeviationKind("R107", "one finish reason, at the end"),
        "delta_after_finish": DeviationKind("R108", "the finish is held back to the end"),
        "finish_reason_empty": DeviationKind("R71", "an empty reason is none"),
        "finish_reason_unknown": DeviationKind("R71", "the nearest reason of the contract"),
        "stop_beside_calls": DeviationKind("R77", "the reason is tool_calls"),
        "refusal_finish": DeviationKind("R112", "a refusal ends with stop, or length"),
        "calls_missing": DeviationKind("R77", "tool_calls without a call is stop"),
        "empty_answer": DeviationKind("R73", "an answer without content, call or refusal is empty"),
        # tool calls
        "call_index_missing": DeviationKind("R132", "a new id or name opens the next call"),
        "call_index_reused": DeviationKind("R133", "a new id at a used index is the next call"),
        "call_index_gap": DeviationKind("R133", "calls are numbered as they appear"),
        "call_id_missing": DeviationKind("R134", "an id is made"),
        "call_id_repeated": DeviationKind("R135", "an id is told once"),
        "call_id_duplicate": DeviationKind("R138", "the later call gets an id of its own"),
        "call_name_repeated": DeviationKind("R135", "a name is told once"),
        "call_name_split": DeviationKind("R134", "the pieces of a name are joined"),
        "call_name_missing": DeviationKind("R134", "the call is dropped as malformed"),
        "call_null": DeviationKind("R93", "null members of a call are absent"),
        "calls_interleaved": DeviationKind("R137", "a call waits until the one before it ends"),
        "extra_call": DeviationKind("R143", "only the first call is kept"),
        "function_call": DeviationKind("R78", "a legacy function call is a tool call"),
        "arguments_object": DeviationKind("R93", "an object is written as its JSON text"),
        "arguments_missing": DeviationKind("R136", "a call without arguments has {}"),
        "arguments_repeated": DeviationKind("R149", "arguments sent again whole are dropped"),
        # usage
        "usage_place": DeviationKind("R124", "usage is read wherever it is"),
        "usage_name": DeviationKind("R173", "counters are read under their other names"),
        "usage_partial": DeviationKind("R173", "what is missing is kept from before or inferred"),
        "usage_number": DeviationKind("R172", "whole floats and digits are integers"),
        "usage_sum": DeviationKind("R171", "the total is the sum"),
        "usage_cache": DeviationKind("R176", "cached tokens are part of the prompt"),
        "usage_reasoning": DeviationKind("R177", "reasoning is part of the completion"),
        "usage_prediction": DeviationKind(
            "R178", "prediction tokens are part of the completion, and none without a prediction"
        ),
        "usage_zero": DeviationKind("R171", "no tokens for an answer is no usage"),
        # logprobs
        "logprob_value": DeviationKind("R155", "null, infinite or positive: clamped"),
        "logprobs_order": DeviationKind("R159", "alternatives are sorted, each token once"),
        "logprobs_chosen": DeviationKind("R160", "a likely token is listed, with one logprob"),
        "logprobs_sum": DeviationKind("R161", "alternatives are scaled to add up to one"),
        "logprobs_bytes": DeviationKind("R162", "a token is what its bytes spell"),
        "logprobs_text": DeviationKind("R164", "entries that spell nothing shown are dropped"),
        "logprobs_missing": DeviationKind("R164", "text without entries has one, at −9999.0"),
        "logprobs_shape": DeviationKind("R153", "parallel lists and partial entries are read"),
        # text
        "calls_in_text": DeviationKind("R134", "a call written as text is a call"),
        "think_tags": DeviationKind("R113", "tagged text in the content is reasoning"),
    }
)
"""Every kind. The names are the labels of a metric: stable, few, and free of text."""


class Deviations:
    """What one answer did wrong so far; `observe` is told of each."""

    __slots__ = ("_observe", "counts")

    def __init__(self, observe: Observe | None) -> None:
        self._observe = observe
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, detail: str) -> None:
        self.counts[kind] += 1
        if self._observe is not None:
            self._observe(Deviation(kind, DEVIATIONS[kind].rule, detail))
