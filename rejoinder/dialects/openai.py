"""OpenAI's dialect: how its requests are read and its answers spelled (contract section 2).

Nulls are part of the spelling here. This module must not know: HTTP, backends, engines.
"""

from collections.abc import Callable
from typing import Literal, assert_never

from rejoinder.dialects import encoding, request
from rejoinder.dialects.dialect import ChunkEncoder, DialectName, RequestPolicy
from rejoinder.dialects.encoding import to_json
from rejoinder.dialects.profile import Profile
from rejoinder.errors import ChatError
from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    Finished,
    Moderated,
    ReasoningDelta,
    RefusalDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
)
from rejoinder.types import (
    AnswerOptions,
    Choice,
    Completion,
    DecodedRequest,
    FinishReason,
    TokenLogprob,
    ToolCall,
    Usage,
)


class OpenAI:
    name: DialectName = "openai"
    impossible: Literal["refuse", "adapt"] = "refuse"

    def decode_request(self, body: bytes, policy: RequestPolicy) -> DecodedRequest:
        profile = Profile(
            "openai",
            extras=policy.extra_parameters == "accept",
            reasoning=policy.openai_reasoning == "reasoning_content",
        )
        return request.decode(body, profile)

    def chunk_encoder(
        self, options: AnswerOptions, policy: RequestPolicy, padding: Callable[[], str]
    ) -> ChunkEncoder:
        return _OpenAIChunkEncoder(options, policy, padding)

    def encode_completion(
        self, completion: Completion, options: AnswerOptions, policy: RequestPolicy
    ) -> bytes:
        choices = b",".join(_choice(c, options, policy) for c in completion.choices)
        parts = [
            b'{"id":%b,"object":"chat.completion","created":%d,"model":%b,"choices":[%b],"usage":%b'
            % (
                to_json(completion.id),
                completion.created,
                to_json(completion.model),
                choices,
                _usage(completion.usage),
            ),
            _served_by(completion.service_tier, completion.system_fingerprint),
        ]
        if completion.moderation is not None:
            parts.append(b',"moderation":' + encoding.moderation(completion.moderation))
        return b"".join((*parts, b"}"))

    def encode_error(self, error: ChatError) -> tuple[int, bytes]:
        return error.status, encoding.error_body(error, code=error.code, param=error.param)


# ---------------------------------------------------------------- fields


def _served_by(service_tier: str, fingerprint: str | None) -> bytes:
    served = b',"service_tier":%b' % to_json(service_tier)
    if fingerprint is not None:
        served += b',"system_fingerprint":%b' % to_json(fingerprint)
    return served


def _usage(usage: Usage) -> bytes:
    """Every counter, zero when unused (R180)."""
    return to_json(
        {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "prompt_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
                "audio_tokens": 0,
            },
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": usage.accepted_prediction_tokens,
                "rejected_prediction_tokens": usage.rejected_prediction_tokens,
            },
        }
    )


def _finish_reason(reason: FinishReason, options: AnswerOptions, *, has_calls: bool) -> bytes:
    """A malformed call is shown as a call or as text (A16); a named one ends with stop (A14)."""
    if reason == "malformed_function_call":
        reason = "tool_calls" if has_calls else "stop"
    if reason != "tool_calls":
        return to_json(reason)
    if options.legacy_functions:
        return b'"function_call"'
    return b'"stop"' if options.named_tool else b'"tool_calls"'


def _logprobs(
    content: tuple[TokenLogprob, ...] | None,
    refusal: tuple[TokenLogprob, ...] | None,
    options: AnswerOptions,
) -> bytes:
    """Null unless asked for; the half that does not apply is null (R151, R152)."""
    if not options.logprobs or not (content or refusal):
        return b"null"

    def half(entries: tuple[TokenLogprob, ...] | None) -> bytes:
        if not entries:
            return b"null"
        return encoding.openai_logprobs(entries, options.num_top_logprobs)

    return b'{"content":%b,"refusal":%b}' % (half(content), half(refusal))


# ---------------------------------------------------------------- bodies


def _choice(choice: Choice, options: AnswerOptions, policy: RequestPolicy) -> bytes:
    return b'{"index":%d,"message":%b,"logprobs":%b,"finish_reason":%b}' % (
        choice.index,
        _message(choice, options, policy),
        _logprobs(choice.content_logprobs, choice.refusal_logprobs, options),
        _finish_reason(choice.finish_reason, options, has_calls=bool(choice.tool_calls)),
    )


def _message(choice: Choice, options: AnswerOptions, policy: RequestPolicy) -> bytes:
    """Content is null exactly where calls or a refusal stand in its place (R73)."""
    refusal = choice.refusal or None
    content = choice.content or ("" if refusal is None and not choice.tool_calls else None)
    parts = [
        b'{"role":"assistant","content":%b,"refusal":%b,"annotations":[]'
        % (_text_or_null(content), _text_or_null(refusal))
    ]
    if choice.reasoning_content and policy.openai_reasoning == "reasoning_content":
        parts.append(b',"reasoning_content":' + to_json(choice.reasoning_content))
    if choice.tool_calls and options.legacy_functions:
        call = choice.tool_calls[0]
        parts.append(b',"function_call":' + encoding.function_call(call.name, call.arguments))
    elif choice.tool_calls:
        parts.append(b',"tool_calls":' + encoding.tool_calls(choice.tool_calls))
    return b"".join((*parts, b"}"))


def _text_or_null(text: str | None) -> bytes:
    return b"null" if text is None else to_json(text)


# ---------------------------------------------------------------- chunks

_ROLE = b'"role":"assistant"'
_TEXT_ROLE = b'{"role":"assistant","content":"","refusal":null}'
_REFUSAL_ROLE = b'{"role":"assistant","content":null,"refusal":""}'
_BLANK_ROLE = b'{"role":"assistant","content":null}'
"""Of a choice that must appear before it is known what it will hold."""


class _OpenChoice:
    """What the encoder knows of one choice."""

    __slots__ = ("call_kinds", "content_head", "head", "is_blank")

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.content_head = head + b'{"content":'
        self.is_blank = True
        """Nothing of it has been shown but its role."""
        self.call_kinds: list[str] = []


class _OpenAIChunkEncoder:
    """The role chunk of a choice waits for its first event that shows something: that decides
    its form (2.3). Only a later choice makes it come earlier, for indices appear in order (R100).
    """

    def __init__(
        self, options: AnswerOptions, policy: RequestPolicy, padding: Callable[[], str]
    ) -> None:
        self._options = options
        self._shows_reasoning = policy.openai_reasoning == "reasoning_content"
        self._padding = padding if options.include_obfuscation else None
        self._head = b""
        self._choices: list[_OpenChoice] = []
        self._num_begun = 0
        """The choices below this index have had their role chunk."""
        self._usage = b',"usage":null' if options.include_usage else b""
        self._set_end()

    def feed(self, event: Event, usage: Usage | None = None) -> bytes:
        if usage is not None and self._options.continuous_usage and self._options.include_usage:
            self._usage = b',"usage":' + _usage(usage)
            self._set_end()
        match event:
            case ContentDelta():
                return self._content(event)
            case ReasoningDelta():
                return self._reasoning(event)
            case RefusalDelta():
                return self._refusal(event)
            case ToolCallStart():
                return self._call_start(event)
            case ToolCallDelta():
                return self._call_delta(event)
            case Finished():
                return self._finish(event)
            case Started():
                self._start(event)
                return b""
            case Moderated():
                return self._without_choices(
                    b',"moderation":' + encoding.moderation(event.moderation) + self._usage
                )
            case Done():
                if not self._options.include_usage:
                    return b""
                return self._without_choices(b',"usage":' + _usage(event.usage))
            case _:
                assert_never(event)

    def _start(self, event: Started) -> None:
        self._head = (
            b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b%b,"choices":['
            % (
                to_json(event.id),
                event.created,
                to_json(event.model),
                _served_by(event.service_tier, event.system_fingerprint),
            )
        )

    def _set_end(self) -> None:
        """What follows a text delta, as a whole: most chunks differ in their text only."""
        self._end = b"]" + self._usage
        self._text_end = b'},"logprobs":null,"finish_reason":null}%b}\n\n' % self._end

    def _padded(self) -> bytes:
        """The `obfuscation` of one chunk (A6)."""
        if self._padding is None:
            return b"}\n\n"
        return b',"obfuscation":%b}\n\n' % to_json(self._padding())

    def _without_choices(self, fields: bytes) -> bytes:
        return b"%b]%b%b" % (self._head, fields, self._padded())

    def _open(self, index: int) -> _OpenChoice:
        choices = self._choices
        while index >= len(choices):
            head = b'%b{"index":%d,"delta":' % (self._head, len(choices))
            choices.append(_OpenChoice(head))
        return choices[index]

    def _chunk(
        self,
        choice: _OpenChoice,
        delta: bytes,
        *,
        logprobs: bytes = b"null",
        finish_reason: bytes = b"null",
    ) -> bytes:
        return b'%b%b,"logprobs":%b,"finish_reason":%b}%b%b' % (
            choice.head,
            delta,
            logprobs,
            finish_reason,
            self._end,
            self._padded(),
        )

    def _begin(self, index: int, role_delta: bytes) -> bytes:
        """The role chunk, once a choice (R102, R103), after those of the choices before it."""
        if index < self._num_begun:
            return b""
        earlier = range(self._num_begun, index)
        roles = [self._chunk(self._open(i), _BLANK_ROLE) for i in earlier]
        self._num_begun = index + 1
        return b"".join(roles) + self._chunk(self._open(index), role_delta)

    def _content(self, event: ContentDelta) -> bytes:
        text = event.text
        logprobs = event.logprobs if self._options.logprobs else None
        if not text and not logprobs:
            return b""
        index = event.index
        choice = self._open(index)
        choice.is_blank = False
        role = b"" if index < self._num_begun else self._begin(index, _TEXT_ROLE)
        if not logprobs and self._padding is None:
            return b"%b%b%b%b" % (role, choice.content_head, to_json(text), self._text_end)
        return role + self._chunk(
            choice,
            b'{"content":%b}' % to_json(text),
            logprobs=_logprobs(logprobs, None, self._options),
        )

    def _reasoning(self, event: ReasoningDelta) -> bytes:
        """Only counted, never shown (R114), unless the configuration says so."""
        if not self._shows_reasoning or not event.text:
            return b""
        choice = self._open(event.index)
        role = self._begin(event.index, _BLANK_ROLE)
        return role + self._chunk(choice, b'{"reasoning_content":%b}' % to_json(event.text))

    def _refusal(self, event: RefusalDelta) -> bytes:
        logprobs = event.logprobs if self._options.logprobs else None
        if not event.text and not logprobs:
            return b""
        choice = self._open(event.index)
        choice.is_blank = False
        role = self._begin(event.index, _REFUSAL_ROLE)
        return role + self._chunk(
            choice,
            b'{"refusal":%b}' % to_json(event.text),
            logprobs=_logprobs(None, logprobs, self._options),
        )

    def _call_start(self, event: ToolCallStart) -> bytes:
        choice = self._open(event.index)
        choice.is_blank = False
        choice.call_kinds.append(event.kind)
        if self._options.legacy_functions:
            if event.call:
                return b""  # at most one (R150)
            opening = b'"function_call":' + encoding.function_call(event.name, "")
        else:
            call = ToolCall(id=event.id, name=event.name, arguments="", kind=event.kind)
            opening = b'"tool_calls":[%b]' % encoding.tool_call(call, index=event.call)
        if event.index < self._num_begun:
            return self._chunk(choice, b"{%b}" % opening)
        return self._begin(event.index, b'{%b,"content":null,%b,"refusal":null}' % (_ROLE, opening))

    def _call_delta(self, event: ToolCallDelta) -> bytes:
        if not event.arguments:
            return b""
        choice = self._open(event.index)
        arguments = to_json(event.arguments)
        if self._options.legacy_functions:
            if event.call:
                return b""
            return self._chunk(choice, b'{"function_call":{"arguments":%b}}' % arguments)
        is_custom = choice.call_kinds[event.call] == "custom"
        form = (
            b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}'
            if is_custom
            else b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}'
        )
        return self._chunk(choice, form % (event.call, arguments))

    def _finish(self, event: Finished) -> bytes:
        choice = self._open(event.index)
        last = self._begin(event.index, _TEXT_ROLE)
        if choice.is_blank and not last:
            last = self._chunk(choice, b'{"content":""}')
        reason = _finish_reason(event.reason, self._options, has_calls=bool(choice.call_kinds))
        return last + self._chunk(choice, b"{}", finish_reason=reason)
