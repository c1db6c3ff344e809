"""A provider's chunks, or its one JSON body → events that always obey the event grammar.

Lenient: what can be repaired is, and each repair is told by kind (`deviations`); what cannot be
is an honest error. The checker reads the same deviations. This module must not know: sockets,
SSE lines, retries, what the answer is for.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from rejoinder.dialects.deviations import Deviations, Observe
from rejoinder.dialects.provider_errors import ProviderError, error_in, to_chat_error
from rejoinder.dialects.provider_logprobs import TokenText, read_logprobs
from rejoinder.dialects.provider_usage import UsageReader, find_usage
from rejoinder.dialects.sse import DONE_DATA
from rejoinder.dialects.tool_deltas import CallAssembler
from rejoinder.errors import InvalidRequest, ProviderFailed
from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    Started,
)
from rejoinder.types import FinishReason, Json, JsonObject, TokenLogprob, Usage

__all__ = ["ChunkDecoder", "LogprobsUse"]

LogprobsUse = Literal["as they come", "required", "dropped"]
"""What becomes of logprobs: given with the delta they came with; brought together with the text
they spell, an answer without any being an error; or none was asked for."""

_FINISH_REASONS: dict[str, FinishReason | Literal["error"]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "max_length": "length",
    "model_length": "length",
    "incomplete": "length",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "recitation": "content_filter",
    "prohibited_content": "content_filter",
    "malformed_function_call": "malformed_function_call",
    "error": "error",
    "abort": "error",
    "aborted": "error",
    "cancelled": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
}
"""Reasons as providers spell them, in lower case; "error" is no end but a failure (R120)."""

_OFFICIAL = frozenset(
    {
        "stop",
        "length",
        "tool_calls",
        "function_call",
        "content_filter",
        "malformed_function_call",
    }
)

_WEIGHT: dict[FinishReason, int] = {
    "stop": 0,
    "tool_calls": 1,
    "malformed_function_call": 2,
    "content_filter": 3,
    "length": 4,
}
"""Of several reasons for one choice the one that says most is told."""

_REASONING_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "thinking",
    "thinking_blocks",
    "reasoning_details",
)
"""Where reasoning text is found, in order; one source per delta."""

_FRAGMENT_KEYS = frozenset({"content", "refusal", "text", "arguments", *_REASONING_FIELDS})
"""Members whose text continues in the next chunk, perhaps in the middle of a character."""

_WHOLE = "\0"

_NO_NAMES: frozenset[str] = frozenset()

_CHARS_PER_TOKEN = 4


class _PlainDelta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    role: Any = None
    reasoning: Any = None
    reasoning_text: Any = None
    thinking: Any = None
    thinking_blocks: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _PlainChoice(Struct, gc=False):
    delta: _PlainDelta
    index: int
    finish_reason: Any = None
    logprobs: Any = None
    usage: Any = None


class _PlainChunk(Struct, gc=False):
    """The shape of nearly every chunk: one choice, one text. Any other goes the long way."""

    choices: list[_PlainChoice]
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_decode_plain = msgspec.json.Decoder(_PlainChunk).decode
_decode_any = msgspec.json.Decoder().decode


class _Choice:
    """What is known of one choice. `reason` is held back until the stream ends (R108)."""

    __slots__ = (
        "calls",
        "halves",
        "has_refusal",
        "has_role",
        "has_text",
        "index",
        "num_payloads",
        "reason",
        "tails",
        "token_text",
        "waiting",
    )

    def __init__(self, index: int, token_text: TokenText | None) -> None:
        self.index = index
        self.token_text = token_text
        """None: text leaves as it comes."""
        self.tails = _NO_NAMES
        """The kinds of text that end in a lost character, U+FFFD."""
        self.calls: CallAssembler | None = None
        self.reason: FinishReason | None = None
        self.has_role = False
        self.has_text = False
        self.has_refusal = False
        self.num_payloads = 0
        self.halves: dict[str, str] = {}
        self.waiting: list[Event] = []


class ChunkDecoder:
    """One answer of a provider: `feed` each payload, `finish` when the body has ended.

    `model` is told when the provider names none; `n` choices were asked for; `reasoning_field` is
    "auto" or the one member that holds reasoning; `num_prompt_tokens` is an estimate, used when
    the provider counts nothing; `new_id` makes ids of calls; `predicted`: a prediction was sent.
    `observe` is told of every deviation and turns the short way of decoding off, so that none is
    missed. After an exception the decoder is spent.
    """

    __slots__ = (
        "_choices",
        "_deviate",
        "_deviations",
        "_ended",
        "_first_index",
        "_fragments",
        "_head",
        "_last_index",
        "_logprobs",
        "_max_calls",
        "_model",
        "_n",
        "_new_id",
        "_num_chars",
        "_num_finished",
        "_num_open",
        "_num_prompt_tokens",
        "_observe",
        "_plain",
        "_reasoning_fields",
        "_secrets",
        "_started",
        "_tool_names",
        "_unary",
        "_usage",
        "_used_ids",
        "num_deltas",
    )

    def __init__(
        self,
        *,
        model: str,
        new_id: Callable[[], str],
        n: int = 1,
        reasoning_field: str = "auto",
        tool_names: Collection[str] = (),
        max_calls: int | None = None,
        num_prompt_tokens: int = 0,
        logprobs: LogprobsUse = "as they come",
        predicted: bool = True,
        secrets: tuple[str, ...] = (),
        observe: Observe | None = None,
    ) -> None:
        self._model = model
        self._new_id = new_id
        self._n = n
        self._reasoning_fields = (
            _REASONING_FIELDS if reasoning_field == "auto" else (reasoning_field,)
        )
        self._tool_names = frozenset(tool_names) if tool_names else _NO_NAMES
        self._max_calls = max_calls
        self._num_prompt_tokens = num_prompt_tokens
        self._logprobs: LogprobsUse = logprobs
        self._secrets = secrets
        self._observe = observe
        self._choices: dict[int, _Choice] = {}
        self._plain: dict[int, _Choice] = {}
        """The choices whose next text needs no thought."""
        self._num_finished = 0
        self._num_open = 0
        self._first_index: int | None = None
        self._last_index = 0
        self._head = Started(model=model)
        self._started = False
        self._ended = False
        self._unary = False
        self._fragments = False
        self._num_chars = 0
        self._used_ids: set[str] | None = None
        self._deviations = Deviations(observe)
        # Not a method of ours: what is given to our parts must not lead back to us, or only the
        # collector of cycles would free an answer.
        self._deviate = self._deviations.note
        self._usage = UsageReader(self._deviate, predicted=predicted)
        self.num_deltas = 0
        """Deltas with a payload so far: progress, and a count of tokens where there is no other."""

    @property
    def repairs(self) -> Counter[str]:
        """How often each kind of `DEVIATIONS` was repaired."""
        return self._deviations.counts

    # ------------------------------------------------------------ in

    def feed(self, payload: str) -> list[Event]:
        """The events of one SSE payload. Raises ChatError for an error and for nonsense."""
        events: list[Event] = []
        self.feed_into((payload,), events)
        return events

    def feed_into(self, payloads: Iterable[str], events: list[Event]) -> None:
        """Appends the events of all payloads that arrived together.

        Raises as `feed`; the events before the bad payload have then been appended.
        """
        plain = self._plain
        for payload in payloads:
            if plain:
                try:
                    chunk = _decode_plain(payload)
                except (msgspec.MsgspecError, RecursionError):
                    self._feed_any(payload, events)
                    continue
                event = self._plain_event(chunk)
                if event is not None:
                    events.append(event)
                    continue
            self._feed_any(payload, events)

    def _plain_event(self, chunk: _PlainChunk) -> Event | None:
        """The event of a chunk that says one text of one open choice and nothing else."""
        choices = chunk.choices
        if len(choices) != 1 or chunk.usage or chunk.error or chunk.x_groq:
            return None
        entry = choices[0]
        delta = entry.delta
        choice = self._plain.get(entry.index)
        if choice is None or (
            entry.finish_reason
            or entry.logprobs
            or entry.usage
            or delta.role
            or delta.reasoning
            or delta.tool_calls
            or delta.refusal
            or delta.reasoning_details
            or delta.thinking
            or delta.thinking_blocks
            or delta.reasoning_text
            or delta.function_call
        ):
            return None
        text, reasoning = delta.content, delta.reasoning_content
        if text and not reasoning and choice.has_text and "\ufffd" not in text:
            self.num_deltas += 1
            self._num_chars += len(text)
            return ContentDelta(choice.index, text)
        if (
            reasoning
            and not text
            and self._reasoning_fields[0] == "reasoning_content"
            and "\ufffd" not in reasoning
        ):
            self.num_deltas += 1
            self._num_chars += len(reasoning)
            return ReasoningDelta(choice.index, reasoning)
        return None

    def feed_body(self, body: bytes) -> list[Event]:
        """The events of a whole body that is JSON and no event stream: one completion, an error,
        or one chunk a line. Raises as `feed` and `finish`."""
        events: list[Event] = []
        text = body.decode("utf-8-sig", "replace").strip()
        try:
            value = self._parse(text)
        except ProviderFailed:
            self._feed_lines(text, events)
        else:
            self._deviate("unary_body", "")
            self._unary = isinstance(value, dict) and not _has_delta(value)
            self._feed_value(value, events)
        if not self._ended:
            self._end(events, certain=self._unary)
        return events

    def finish(self, rest: Iterable[str] = ()) -> list[Event]:
        """The body has ended. `rest`: the last, perhaps unfinished payload.

        Raises ProviderFailed if the answer is not complete: a silent end is a failure.
        """
        events: list[Event] = []
        if self._ended:
            return events
        for payload in rest:
            try:
                self._parse(payload)
            except ProviderFailed:
                continue  # cut in the middle: as if it had not come
            self._feed_any(payload, events)
        if not self._ended:
            self._end(events, certain=False)
        return events

    # ------------------------------------------------------------ what is known

    @property
    def ended(self) -> bool:
        """Whether the answer is complete: `Done` has been given."""
        return self._ended

    @property
    def complete(self) -> bool:
        """Whether every choice has told its finish reason: only usage and [DONE] may follow."""
        return self._num_finished >= self._n

    @property
    def has_usage(self) -> bool:
        return self._usage.usage() is not None

    def usage(self) -> Usage:
        """What the provider has reported so far, else an estimate with its mark.

        An answer cut short costs at least what was seen of it.
        """
        reported = self._usage.usage()
        seen = max(self.num_deltas, -(-self._num_chars // _CHARS_PER_TOKEN))
        if reported is not None and reported.total_tokens == 0 and seen:
            self._deviate("usage_zero", "")
            reported = None
        if reported is None:
            return Usage(
                prompt_tokens=self._num_prompt_tokens, completion_tokens=seen, estimated=True
            )
        if not self._ended and not self.complete and reported.completion_tokens < seen:
            return msgspec.structs.replace(reported, completion_tokens=seen, estimated=True)
        return reported

    # ------------------------------------------------------------ payloads

    def _feed_any(self, payload: str, events: list[Event]) -> None:
        text = payload.strip()
        if not text:
            return
        if self._ended:
            self._deviate("after_done", "payload")
        elif text == DONE_DATA:
            self._end(events, certain=True)
        elif text[0] == ":":
            self._deviate("heartbeat_data", "")
        else:
            self._feed_value(self._parse(text), events)

    def _feed_lines(self, text: str, events: list[Event]) -> None:
        # Only what ends a line of JSON: the text of a string may hold other line separators.
        lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
        if len(lines) < 2:
            raise ProviderFailed(
                "The provider of this model answered with something else than JSON."
            )
        self._deviate("json_lines", "")
        for line in lines:
            self._feed_any(line, events)

    def _parse(self, text: str) -> Json:
        try:
            return cast(Json, _decode_any(text))
        except (msgspec.MsgspecError, RecursionError):
            return self._parse_leniently(text)

    def _parse_leniently(self, text: str) -> Json:
        """JSON with what writers of JSON get wrong: NaN, lone surrogates, control characters."""
        constants: list[str] = []

        def constant(name: str) -> float:
            constants.append(name)
            return float(name)

        try:
            value = json.loads(text, strict=False, parse_constant=constant)
        except (ValueError, RecursionError):
            raise ProviderFailed(
                "The provider of this model sent a chunk that is not JSON."
            ) from None
        if constants:
            self._deviate("json_constant", constants[0])
        if "\\ud" in text.lower():
            self._fragments = True
        elif not constants:
            self._deviate("json_control", "")
        return _scrubbed(value, "")

    def _feed_value(self, value: Json, events: list[Event]) -> None:
        match value:
            case dict():
                self._feed_chunk(value, events)
            case list() if value and all(isinstance(one, dict) for one in value):
                self._deviate("several_chunks", str(len(value)))
                for one in value:
                    self._feed_value(one, events)
            case "[DONE]":
                self._end(events, certain=True)
            case None | [] | "":
                self._deviate("ignored_payload", "empty")
            case _:
                raise ProviderFailed("The provider of this model sent a chunk that is no object.")

    def _feed_chunk(self, chunk: JsonObject, events: list[Event]) -> None:
        error = error_in(chunk)
        if error is not None:
            raise to_chat_error(error, secrets=self._secrets)
        usage = find_usage(chunk)
        choices = chunk.get("choices")
        if isinstance(choices, dict):
            self._deviate("choices_object", "")
            choices = [choices]
        new: list[Event] = []
        if isinstance(choices, list):
            for position, entry in enumerate(choices):
                if isinstance(entry, dict):
                    self._feed_choice(entry, position, new)
        elif usage is None:
            self._deviate("ignored_payload", ",".join(list(chunk)[:3])[:60])
        if usage is not None:
            if not usage[1]:
                self._deviate("usage_place", "")
            self._usage.feed(usage[0])
        if not self._started and choices:
            self._head = self._heading(chunk)
            if new:
                self._started = True
                events.append(self._head)
        events += new

    def _heading(self, chunk: JsonObject) -> Started:
        """What the provider says of the answer as a whole; some say it in the first chunk only."""
        if self._head.model != self._model and not chunk.get("model"):
            return self._head
        model, tier = chunk.get("model"), chunk.get("service_tier")
        fingerprint = chunk.get("system_fingerprint")
        return Started(
            model=model if isinstance(model, str) and model else self._model,
            service_tier=tier if tier in ("priority", "flex") else "default",
            system_fingerprint=fingerprint if isinstance(fingerprint, str) else None,
        )

    # ------------------------------------------------------------ choices

    def _feed_choice(self, entry: JsonObject, position: int, events: list[Event]) -> None:
        choice = self._choice_of(entry.get("index"), position)
        if choice is None:
            self._deviate("extra_choice", str(entry.get("index"))[:20])
            return
        reason = self._reason(entry)
        delta = self._delta_of(entry, choice)
        new: list[Event] = []
        self._feed_delta(choice, delta, entry, new)
        if new and choice.reason is not None:
            self._deviate("delta_after_finish", str(choice.index))
        self._give(choice, new, events)
        if reason is not None:
            if choice.reason is not None:
                self._deviate("finish_repeated", reason)
            else:
                self._num_finished += 1
            if choice.reason is None or _WEIGHT[reason] > _WEIGHT[choice.reason]:
                choice.reason = reason
        self._set_plain(choice)

    def _choice_of(self, index: Json, position: int) -> _Choice | None:
        """The choice of an entry; None for one that was not asked for."""
        if isinstance(index, float) and index.is_integer():
            index = int(index)
        if not isinstance(index, int) or isinstance(index, bool):
            self._deviate("choice_index", "missing")
            index = position
        if self._n == 1:
            if position:
                return None
            index = self._only_index(index)
        if not 0 <= index < self._n:
            return None
        choice = self._choices.get(index)
        if choice is None:
            token_text = TokenText(self._deviate) if self._logprobs == "required" else None
            choice = self._choices[index] = _Choice(index, token_text)
            if index > len(self._choices) - 1:
                self._deviate("choice_order", str(index))
        return choice

    def _only_index(self, index: int) -> int:
        """One choice was asked for: an index that is the same, or only ever counts up, is 0."""
        if self._first_index is None:
            self._first_index = self._last_index = index
        if index != self._last_index:
            if index < self._last_index:
                raise ProviderFailed("The provider of this model mixed answers into one.")
            self._last_index = index
        if index:
            self._deviate("choice_index", str(index)[:20])
        return 0

    def _give(self, choice: _Choice, new: list[Event], events: list[Event]) -> None:
        """Choices begin in ascending order (R100): one that is early waits."""
        if not new:
            return
        if choice.index > self._num_open:
            choice.waiting += new
            return
        events += new
        if choice.index == self._num_open:
            self._num_open += 1
            while (after := self._choices.get(self._num_open)) is not None and after.waiting:
                events += after.waiting
                after.waiting = []
                self._num_open += 1

    def _set_plain(self, choice: _Choice) -> None:
        simple = (
            self._observe is None
            and choice.index < self._num_open
            and choice.calls is None
            and choice.reason is None
            and not choice.has_refusal
            and not choice.halves
            and not choice.tails
            and choice.token_text is None
            and not self._last_index
        )
        if simple:
            self._plain[choice.index] = choice
        else:
            self._plain.pop(choice.index, None)

    def _reason(self, entry: JsonObject) -> FinishReason | None:
        value = entry.get("finish_reason", entry.get("finishReason"))
        if value is None:
            return None
        if value == "":
            self._deviate("finish_reason_empty", "")
            return None
        if not isinstance(value, str):
            self._deviate("finish_reason_unknown", type(value).__name__)
            return "stop" if value else None
        if value not in _OFFICIAL:
            self._deviate("finish_reason_unknown", value[:40])
        reason = _FINISH_REASONS.get(value.lower(), "stop")
        if reason == "error":
            error = error_in(entry) or ProviderError(500)
            raise to_chat_error(error, secrets=self._secrets)
        return reason

    def _delta_of(self, entry: JsonObject, choice: _Choice) -> JsonObject:
        delta = entry.get("delta")
        if isinstance(delta, dict):
            return delta
        message = entry.get("message")
        text = entry.get("text")
        if isinstance(message, dict):
            if not self._unary:
                self._deviate("delta_elsewhere", "message")
            return {} if choice.num_payloads else message  # not the whole answer once more
        if isinstance(text, str):
            self._deviate("delta_elsewhere", "text")
            return {"content": text}
        self._deviate("delta_missing", str(choice.index))
        return {}

    # ------------------------------------------------------------ deltas

    def _feed_delta(
        self, choice: _Choice, delta: JsonObject, entry: JsonObject, events: list[Event]
    ) -> None:
        i = choice.index
        if delta.get("role"):
            if choice.has_role:
                self._deviate("role_repeated", str(i))
            choice.has_role = True
        content, thought = self._content(delta.get("content"))
        reasoning = thought or self._reasoning(delta)
        refusal = _string(delta.get("refusal"))
        calls = delta.get("tool_calls")
        legacy = delta.get("function_call")
        num_kinds = bool(content) + bool(reasoning) + bool(refusal) + bool(calls)
        if num_kinds or legacy:
            if not choice.has_role and not choice.num_payloads and not self._unary:
                self._deviate("role_missing", str(i))
            choice.num_payloads += 1
            self.num_deltas += 1
            self._num_chars += len(content) + len(reasoning) + len(refusal)
        if num_kinds > 1 and not self._unary:
            self._deviate("several_payloads", str(i))
        logprobs, refusal_logprobs = self._logprobs_of(entry)
        if reasoning and (reasoning := self._whole(choice, "reasoning", reasoning)):
            events.append(ReasoningDelta(i, reasoning))
        other = reasoning or calls or legacy
        if choice.token_text and (logprobs or refusal_logprobs) and other and not content + refusal:
            self._deviate("logprobs_text", "entries of another delta")
            logprobs = refusal_logprobs = None
        if content:
            content = self._whole(choice, "content", content)
        if not refusal:
            logprobs = logprobs or refusal_logprobs
        elif not content:
            refusal_logprobs = refusal_logprobs or logprobs
            logprobs = None
        if content or logprobs:
            self._feed_content(choice, content, logprobs, events)
        if refusal:
            refusal = self._whole(choice, "refusal", refusal)
            self._feed_refusal(choice, refusal, refusal_logprobs, events)
        self._feed_calls(choice, calls, legacy, events)

    def _logprobs_of(
        self, entry: JsonObject
    ) -> tuple[tuple[TokenLogprob, ...] | None, tuple[TokenLogprob, ...] | None]:
        logprobs = entry.get("logprobs")
        if not logprobs or self._logprobs == "dropped":
            return None, None
        return read_logprobs(logprobs, self._deviate)

    def _feed_content(
        self,
        choice: _Choice,
        content: str,
        logprobs: tuple[TokenLogprob, ...] | None,
        events: list[Event],
    ) -> None:
        choice.has_text |= bool(content)
        if choice.has_refusal and content:
            self._deviate("refusal_beside_content", "content")
        self._say(choice, content, logprobs, events)

    def _feed_refusal(
        self,
        choice: _Choice,
        refusal: str,
        logprobs: tuple[TokenLogprob, ...] | None,
        events: list[Event],
    ) -> None:
        if choice.has_text and not choice.has_refusal:
            self._deviate("refusal_beside_content", "refusal")
        elif choice.calls is not None and not choice.has_refusal:
            self._deviate("refusal_beside_calls", "refusal")
            choice.has_text = True
        else:
            choice.has_refusal = True
        self._say(choice, refusal, logprobs, events)

    def _say(
        self,
        choice: _Choice,
        text: str,
        logprobs: tuple[TokenLogprob, ...] | None,
        events: list[Event],
    ) -> None:
        """Visible text, as what the choice has begun with, with the tokens it is made of."""
        kind = RefusalDelta if choice.has_refusal else ContentDelta
        token_text = choice.token_text
        if token_text is None:
            events.append(kind(choice.index, text, logprobs))
            return
        events += [kind(choice.index, *piece) for piece in token_text.feed(text, logprobs)]
        if token_text.is_overdue:
            self._say_rest(choice, events)

    def _say_rest(self, choice: _Choice, events: list[Event]) -> None:
        """Text that has waited for its tokens. Raises InvalidRequest where an answer in words has
        had none; some blanks before a call may have none."""
        if choice.token_text is None:
            return
        kind = RefusalDelta if choice.has_refusal else ContentDelta
        pieces = choice.token_text.flush()
        if pieces and not choice.token_text.has_entries and choice.calls is None:
            raise InvalidRequest(
                "The provider of this model does not give logprobs.",
                param="logprobs",
                code="unsupported_parameter",
            )
        events += [kind(choice.index, *piece) for piece in pieces]

    def _feed_calls(self, choice: _Choice, calls: Json, legacy: Json, events: list[Event]) -> None:
        entries: list[JsonObject] = []
        if isinstance(calls, dict):
            calls = [calls]
        if isinstance(calls, list):
            entries += [one for one in calls if isinstance(one, dict)]
        if isinstance(legacy, dict) and legacy and not entries:
            self._deviate("function_call", "")
            entries.append({"index": 0, "function": legacy})
        if not entries:
            return
        if choice.has_refusal:
            self._deviate("refusal_beside_calls", "call")
            return
        if choice.calls is None:
            if self._used_ids is None:
                self._used_ids = set()
            choice.calls = CallAssembler(
                choice.index,
                new_id=self._new_id,
                used_ids=self._used_ids,
                deviate=self._deviate,
                tool_names=self._tool_names,
                max_calls=self._max_calls,
            )
        self._say_rest(choice, events)
        for number, entry in enumerate(entries):
            if self._unary:
                entry = {"index": number, **entry}
            self._join_arguments(choice, entry)
            choice.calls.feed(entry, events)

    def _join_arguments(self, choice: _Choice, entry: JsonObject) -> None:
        for body in (entry.get("function"), entry):
            if isinstance(body, dict) and isinstance(arguments := body.get("arguments"), str):
                self._num_chars += len(arguments)
                if self._fragments or choice.halves:
                    key = f"call {entry.get('index')}"
                    body["arguments"] = self._joined(choice, key, arguments)

    def _content(self, value: Json) -> tuple[str, str]:
        """The visible text of a content member, and the thinking in it."""
        if value is None or isinstance(value, str):
            return value or "", ""
        self._deviate("content_parts", type(value).__name__)
        parts = value if isinstance(value, list) else [value]
        texts: list[str] = []
        thoughts: list[str] = []
        for part in parts:
            if isinstance(part, dict) and part.get("type") in ("thinking", "reasoning"):
                thoughts.append(_text_in(part))
            else:
                texts.append(_text_in(part))
        return "".join(texts), "".join(thoughts)

    def _reasoning(self, delta: JsonObject) -> str:
        found = ""
        for field in self._reasoning_fields:
            value = delta.get(field)
            if value is None or value == "":
                continue
            text = value if isinstance(value, str) else _text_in(value)
            if text and found:
                self._deviate("reasoning_mirrored", field[:40])
                break
            found = text
        return found

    def _joined(self, choice: _Choice, key: str, text: str) -> str:
        """The text with characters whole; half of one at the end waits for the next delta."""
        half = choice.halves.pop(key, "")
        if half or self._fragments:
            text = half + text
            if "\ud800" <= text[-1:] <= "\udbff":
                choice.halves[key] = text[-1]
                text = text[:-1]
                self._deviate("split_surrogate", key)
            return _paired(text)
        return text

    def _whole(self, choice: _Choice, key: str, text: str) -> str:
        """`_joined`, and what remains of a character that was lost is told once (R116)."""
        text = self._joined(choice, key, text)
        kind = "reasoning" if key == "reasoning" else "text"
        if text[:1] == "\ufffd" and kind in choice.tails:
            self._deviate("split_character", key)
            text = text.lstrip("\ufffd")
        if text[-1:] == "\ufffd":
            choice.tails |= {kind}
        elif text and choice.tails:
            choice.tails -= {kind}
        return text

    # ------------------------------------------------------------ the end

    def _end(self, events: list[Event], *, certain: bool) -> None:
        """Everything that waits, the finish reasons, Done.

        `certain`: the provider said that this is the end; without it every choice must have told
        its reason. Raises ProviderFailed for an answer that is not whole.
        """
        self._require_whole(certain=certain)
        if not certain:
            self._deviate("missing_done", "")
        new: list[Event] = []
        reasons = [self._close(self._choices[i], new) for i in range(self._n)]
        new += [Finished(i, reason) for i, reason in enumerate(reasons)]
        if not self._started:
            self._started = True
            events.append(self._head)
        self._ended = True
        self._plain.clear()
        events += new
        events.append(Done(self.usage()))

    def _require_whole(self, *, certain: bool) -> None:
        choices = self._choices
        if not any(c.num_payloads or c.reason for c in choices.values()):
            raise ProviderFailed("The provider of this model ended its answer without any.")
        if len(choices) < self._n:
            raise ProviderFailed(
                f"The provider of this model gave {len(choices)} of {self._n} choices."
            )
        for choice in choices.values():
            if choice.reason is None and not (certain and choice.num_payloads):
                raise ProviderFailed(
                    "The provider of this model ended its answer before it was complete."
                )

    def _close(self, choice: _Choice, events: list[Event]) -> FinishReason:
        reason = choice.reason
        i = choice.index
        events += choice.waiting
        choice.waiting = []
        for key in [key for key in choice.halves if not key.startswith("call")]:
            del choice.halves[key]
            kind = "reasoning" if key == "reasoning" else "text"
            if kind in choice.tails:
                continue
            if kind == "reasoning":
                events.append(ReasoningDelta(i, "\ufffd"))
            else:
                self._say(choice, "\ufffd", None, events)
        self._say_rest(choice, events)
        num_calls, malformed = 0, False
        if choice.calls is not None:
            cut = reason in ("length", "content_filter")
            num_calls, malformed = choice.calls.flush(events, cut=cut)
        if not (choice.has_text or choice.has_refusal or num_calls):
            self._deviate("empty_answer", str(i))
            events.append(ContentDelta(i, ""))
        if reason is None:
            self._deviate("missing_finish", str(i))
            reason = "tool_calls" if num_calls else "stop"
        if choice.has_refusal and reason not in ("stop", "length"):
            self._deviate("refusal_finish", reason)
            return "stop"
        if malformed and reason in ("stop", "tool_calls"):
            return "malformed_function_call"
        if num_calls and reason == "stop":
            self._deviate("stop_beside_calls", str(i))
            return "tool_calls"
        if not num_calls and reason == "tool_calls":
            self._deviate("calls_missing", str(i))
            return "stop"
        return reason


def _has_delta(value: JsonObject) -> bool:
    choices = value.get("choices")
    return isinstance(choices, list) and any(isinstance(c, dict) and "delta" in c for c in choices)


def _string(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _text_in(value: Json) -> str:
    """The text of a part, a list of parts, or a reasoning detail."""
    match value:
        case str():
            return value
        case list():
            return "".join(_text_in(one) for one in value)
        case dict():
            for key in ("text", "content", "thinking", "reasoning", "summary", "refusal"):
                if value.get(key):
                    return _text_in(value[key])
    return ""


def _paired(text: str) -> str:
    """Surrogates that belong together joined, others replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _scrubbed(value: Any, key: str) -> Json:
    """A JSON value whose strings can be written again; text that continues keeps its halves."""
    if isinstance(value, str):
        if key in _FRAGMENT_KEYS or value.isascii():
            return value
        return _paired(value)
    if isinstance(value, list):
        return [_scrubbed(one, key) for one in value]
    if isinstance(value, dict):
        whole = key in ("arguments", _WHOLE)  # a value of its own, not a fragment
        return {
            _paired(name): _scrubbed(one, _WHOLE if whole else name) for name, one in value.items()
        }
    return cast(Json, value)
