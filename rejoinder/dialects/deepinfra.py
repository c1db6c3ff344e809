"""DeepInfra's dialect: how its requests are read and its answers spelled (contract section 2).

There is no null in an answer; an absent value is an absent key. This module must not know: HTTP,
backends, engines.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Literal, assert_never

from rejoinder.dialects import encoding, request
from rejoinder.dialects.dialect import ChunkEncoder, DialectName, RequestPolicy
from rejoinder.dialects.encoding import to_json
from rejoinder.dialects.profile import Profile
from rejoinder.errors import ChatError, InvalidParameter, QuotaExceeded
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
    TokenLogprob,
    ToolCall,
    Usage,
)

_STATUS_OF: dict[type[ChatError], int] = {InvalidParameter: 422, QuotaExceeded: 402}
"""Where this dialect's status is another than the error's own (A20, R204)."""

_PROFILE = Profile("deepinfra")

_INDEX = re.compile(r"\.?\[(\d+)\]")


class DeepInfra:
    name: DialectName = "deepinfra"
    impossible: Literal["refuse", "adapt"] = "adapt"

    def decode_request(self, body: bytes, policy: RequestPolicy) -> DecodedRequest:
        return request.decode(body, _PROFILE)

    def chunk_encoder(
        self, options: AnswerOptions, policy: RequestPolicy, padding: Callable[[], str]
    ) -> ChunkEncoder:
        return _DeepInfraChunkEncoder(options)

    def encode_completion(
        self, completion: Completion, options: AnswerOptions, policy: RequestPolicy
    ) -> bytes:
        return (
            b'{"id":%b,"object":"chat.completion","created":%d,"model":%b,"choices":[%b],'
            b'"usage":%b,"service_tier":%b}'
        ) % (
            to_json(completion.id),
            completion.created,
            to_json(completion.model),
            b",".join(_choice(choice, options) for choice in completion.choices),
            _usage(completion.usage, completion.estimated_cost),
            _tier(completion.service_tier),
        )

    def encode_error(self, error: ChatError) -> tuple[int, bytes]:
        is_invalid = isinstance(error, InvalidParameter)
        status = _STATUS_OF.get(type(error), error.status)
        code = None if is_invalid else error.code
        return status, encoding.error_body(error, code=code, param=_dotted(error.param))


def _dotted(param: str | None) -> str | None:
    """`messages.3.content`, also where the core, which knows no dialect, said `messages[3]`."""
    return None if param is None else _INDEX.sub(r".\1", param)


# ---------------------------------------------------------------- fields


def _tier(service_tier: str) -> bytes:
    """Only two tiers have a name in the schema (A4, R82)."""
    return b'"priority"' if service_tier == "priority" else b'"default"'


def _usage(usage: Usage, cost: Decimal | None = None) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d%b,'
        b'"prompt_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d}}'
    ) % (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        b"" if cost is None else b',"estimated_cost":' + encoding.number_of(cost),
        usage.cached_tokens,
        usage.cache_write_tokens,
    )


def _logprobs(entries: tuple[TokenLogprob, ...] | None, options: AnswerOptions) -> bytes:
    """The whole member with its comma, or nothing."""
    if not options.logprobs or not entries:
        return b""
    shown = encoding.deepinfra_logprobs(entries, options.num_top_logprobs)
    return b',"logprobs":{"content":%b}' % shown


def _joined(
    content: tuple[TokenLogprob, ...] | None, refusal: tuple[TokenLogprob, ...] | None
) -> tuple[TokenLogprob, ...]:
    return (refusal or ()) + (content or ())


# ---------------------------------------------------------------- bodies


def _choice(choice: Choice, options: AnswerOptions) -> bytes:
    entries = _joined(choice.content_logprobs, choice.refusal_logprobs)
    return b'{"index":%d,"message":%b%b,"finish_reason":%b}' % (
        choice.index,
        _message(choice),
        _logprobs(entries, options),
        to_json(choice.finish_reason),
    )


def _message(choice: Choice) -> bytes:
    """A refusal is plain content here (2.9); beside calls empty content is left out (R148)."""
    content = (choice.refusal or "") + (choice.content or "")
    parts = [b'{"role":"assistant"']
    if content or not choice.tool_calls:
        parts.append(b',"content":' + to_json(content))
    if choice.reasoning_content:
        parts.append(b',"reasoning_content":' + to_json(choice.reasoning_content))
    if choice.tool_calls:
        parts.append(b',"tool_calls":' + encoding.tool_calls(map(_as_function, choice.tool_calls)))
    return b"".join((*parts, b"}"))


def _as_function(call: ToolCall) -> ToolCall:
    """There are no custom tools here."""
    return ToolCall(id=call.id, name=call.name, arguments=call.arguments)


# ---------------------------------------------------------------- chunks

_TEXT_ROLE = b'{"role":"assistant","content":""}'


class _OpenChoice:
    """What the encoder knows of one choice."""

    __slots__ = ("content_head", "head")

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.content_head = head + b'{"content":'


class _DeepInfraChunkEncoder:
    """Usage rides on the last finish chunk (R127, A41): each finish chunk waits for the event
    after it, which tells whether it is the last."""

    def __init__(self, options: AnswerOptions) -> None:
        self._options = options
        self._is_continuous = options.continuous_usage and options.include_usage
        self._head = b""
        self._choices: list[_OpenChoice] = []
        self._num_begun = 0
        """The choices below this index have had their role chunk."""
        self._held = b""
        """A finish chunk without its end."""
        self._set_end(_usage(Usage()) if self._is_continuous else None)

    def feed(self, event: Event, usage: Usage | None = None) -> bytes:
        if usage is not None and self._is_continuous:
            self._set_end(_usage(usage))
        match event:
            case ContentDelta():
                return self._release() + self._text(event.index, event.text, event.logprobs)
            case RefusalDelta():
                return self._release() + self._text(event.index, event.text, event.logprobs)
            case ReasoningDelta():
                return self._release() + self._reasoning(event)
            case ToolCallStart():
                return self._release() + self._call_start(event)
            case ToolCallDelta():
                return self._release() + self._call_delta(event)
            case Finished():
                return self._release() + self._finish(event)
            case Started():
                self._start(event)
                return b""
            case Moderated():
                return b""
            case Done():
                return self._done(event)
            case _:
                assert_never(event)

    def _start(self, event: Started) -> None:
        self._head = (
            b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,'
            b'"service_tier":%b,"choices":['
        ) % (
            to_json(event.id),
            event.created,
            to_json(event.model),
            _tier(event.service_tier),
        )

    def _set_end(self, usage: bytes | None) -> None:
        self._end = b"}]}\n\n" if usage is None else b'}],"usage":%b}\n\n' % usage
        self._text_end = b"}" + self._end

    def _open(self, index: int) -> _OpenChoice:
        choices = self._choices
        while index >= len(choices):
            head = b'%b{"index":%d,"delta":' % (self._head, len(choices))
            choices.append(_OpenChoice(head))
        return choices[index]

    def _begin(self, index: int, role_delta: bytes = _TEXT_ROLE) -> bytes:
        """The role chunk, once a choice (R102, R103), after those of the choices before it."""
        if index < self._num_begun:
            return b""
        earlier = range(self._num_begun, index)
        roles = [self._open(i).head + _TEXT_ROLE + self._end for i in earlier]
        self._num_begun = index + 1
        return b"".join(roles) + self._open(index).head + role_delta + self._end

    def _release(self) -> bytes:
        """The held finish chunk, now that it is not the last."""
        if not self._held:
            return b""
        held, self._held = self._held, b""
        return held + self._end

    def _done(self, event: Done) -> bytes:
        if self._options.include_usage:
            self._set_end(_usage(event.usage, event.estimated_cost))
        return self._release()

    def _text(self, index: int, text: str, logprobs: tuple[TokenLogprob, ...] | None) -> bytes:
        if not self._options.logprobs:
            logprobs = None
        if not text and not logprobs:
            return b""
        choice = self._open(index)
        role = b"" if index < self._num_begun else self._begin(index)
        if not logprobs:
            return b"%b%b%b%b" % (role, choice.content_head, to_json(text), self._text_end)
        return b"%b%b%b}%b%b" % (
            role,
            choice.content_head,
            to_json(text),
            _logprobs(logprobs, self._options),
            self._end,
        )

    def _reasoning(self, event: ReasoningDelta) -> bytes:
        if not event.text:
            return b""
        choice = self._open(event.index)
        role = self._begin(event.index)
        delta = b'{"reasoning_content":%b}' % to_json(event.text)
        return role + choice.head + delta + self._end

    def _call_start(self, event: ToolCallStart) -> bytes:
        choice = self._open(event.index)
        call = ToolCall(id=event.id, name=event.name, arguments="")
        opening = b'"tool_calls":[%b]' % encoding.tool_call(call, index=event.call)
        if event.index < self._num_begun:
            return choice.head + b"{%b}" % opening + self._end
        return self._begin(event.index, b'{"role":"assistant",%b}' % opening)

    def _call_delta(self, event: ToolCallDelta) -> bytes:
        if not event.arguments:
            return b""
        return b'%b{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}%b' % (
            self._open(event.index).head,
            event.call,
            to_json(event.arguments),
            self._end,
        )

    def _finish(self, event: Finished) -> bytes:
        choice = self._open(event.index)
        role = self._begin(event.index)
        self._held = choice.head + b'{},"finish_reason":' + to_json(event.reason)
        return role if self._options.include_usage else role + self._release()
