"""The chat template: a request → the prompt's tokens, in jinja2's immutable sandbox.

Text that people wrote never becomes a control token, whatever the template does with it (guard.py).
This module must not know: engines, dialects; the clock is an argument.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec
from msgspec import Struct

from rejoinder.errors import ContextLengthExceeded, InvalidRequest
from rejoinder.text import conversation
from rejoinder.text.conversation import Abilities, message_values, tool_values
from rejoinder.text.formats import TOOL_FORMATS, detect_formats, marker_bytes
from rejoinder.text.guard import ControlTokens, spare_characters, strings_in
from rejoinder.text.reasoning import ReasoningFormat, reasoning_format, template_kwargs
from rejoinder.types import (
    AnyTool,
    AssistantMessage,
    ChatRequest,
    Json,
    JsonObject,
    JsonSchemaFormat,
    Tokenizer,
)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""For models that bring no template."""

_RESERVED = frozenset(
    (
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "raise_exception",
        "strftime_now",
    )
)
_MAX_KWARGS_VALUES = 10_000
_MAX_KWARGS_CHARACTERS = 1_000_000
_MAX_GROWTH = 8
_SPARE_OUTPUT = 1_000_000
_NOT_ASCII = re.compile("[^\\x00-\\x7f\\ue000-\\uf8ff\\U000f0000-\\U000fffff]")


class RenderedPrompt(Struct, frozen=True):
    """What the model reads. `breakpoints`: lengths of prefixes, in tokens, that end where the
    request marked one (contract 4.6). `opens_thinking`: the prompt ends inside a thought."""

    text: str
    token_ids: tuple[int, ...]
    breakpoints: tuple[int, ...] = ()
    opens_thinking: bool = False


class _Refusal(Exception):
    """The template called raise_exception."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's turns for training; here it is only a block."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        for value in (left, right):
            if not isinstance(value, int | float) or abs(value) > 10_000:
                raise jinja2.exceptions.SecurityError("a product in the template is too large")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(str(message))


class _Pen:
    """One request's spare characters: sentinel, breakpoint mark, end mark (`conversation.Ink`)."""

    def __init__(self, control: ControlTokens, texts: Sequence[str]) -> None:
        self._control = control
        self.sentinel, self.mark, self.end = spare_characters(texts, 3)

    def text(self, text: str) -> str:
        return self._control.guard(text, self.sentinel)

    def json(self, value: Json) -> Json:
        return self._control.guard_json(value, self.sentinel)

    def breakpoint(self, text: str) -> str:
        end = len(text.rstrip())  # before white space that a template may trim
        return text[:end] + self.mark + text[end:]


class ChatTemplate:
    """One model's template with its tokenizer and formats.

    `tool_format`, `reasoning_format`: a name of the tables, or "auto". Raises ValueError when the
    template has a syntax error or a format is not known.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        tool_format: str = "auto",
        reasoning_format: str = "auto",
        bos_token: str = "",
        eos_token: str = "",
    ) -> None:
        self.source = source or CHATML
        self._tokenizer = tokenizer
        self._control = ControlTokens(tokenizer.control_tokens)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error
        self.tool_format, self.reasoning_format = detect_formats(
            self.source, tool_format, reasoning_format
        )
        self.abilities = self._probe()
        self.token_bytes = marker_bytes(tokenizer, self.tool_format, self.reasoning_format)
        """The bytes of a token for a `ChoiceDecoder`: markers that are control tokens have text."""

    def render(self, request: ChatRequest, *, now: datetime) -> RenderedPrompt:
        """The prompt of a request. Raises InvalidRequest naming `messages`, the part that is not
        text, or `chat_template_kwargs`."""
        kwargs = request.chat_template_kwargs
        _check_kwargs(kwargs)
        tools = request.tools if request.tool_choice.mode != "none" else ()
        texts = _texts_of(request)
        try:
            pen = _Pen(self._control, [self.source, *texts])
        except ValueError as error:
            raise InvalidRequest(f"Cannot be rendered: {error}.", param="messages") from None
        messages = self._messages(request, tools, pen)
        variables: JsonObject = {
            **template_kwargs(request.reasoning.effort, self._reasoning),
            **_object_of(pen.json(kwargs)),
        }
        if tools and self.abilities.tools:
            variables["tools"] = tool_values(tools, pen)
        final = request.continue_final_message
        if final and not (request.messages and isinstance(request.messages[-1], AssistantMessage)):
            raise InvalidRequest(
                "continue_final_message needs an assistant message at the end.", param="messages"
            )
        if final:
            messages[-1] = _with_end_mark(messages[-1], pen.end)
        limit = _SPARE_OUTPUT + _MAX_GROWTH * sum(map(len, texts))
        text = self._render_adapted(messages, variables, final=final, now=now, limit=limit)
        if final:
            text, found, _ = text.rpartition(pen.end)
            if not found:
                raise InvalidRequest(
                    "This model's chat template cannot continue the final message.",
                    param="continue_final_message",
                )
        return self._prompt(text, pen, request)

    # ------------------------------------------------------------ values

    @property
    def _reasoning(self) -> ReasoningFormat:
        return reasoning_format(self.reasoning_format)

    def _messages(
        self, request: ChatRequest, tools: Sequence[AnyTool], pen: _Pen
    ) -> list[JsonObject]:
        format = TOOL_FORMATS[self.tool_format]
        messages = message_values(request.messages, self.abilities, format.spell, pen)
        if tools and not self.abilities.tools:
            messages = conversation.with_instructions(
                messages, format.describe(tool_values(tools, pen))
            )
        match request.response_format:
            case JsonSchemaFormat(enforced=False, schema=dict() as schema):
                hint = json.dumps(pen.json(schema), ensure_ascii=False)
                messages = conversation.with_instructions(
                    messages, f"Answer with JSON that fits this JSON Schema:\n{hint}"
                )
            case _:
                pass
        if not self.abilities.late_system:
            messages = conversation.with_one_system(messages)
        if not self.abilities.system:
            messages = conversation.without_system(messages)
        return messages

    # ------------------------------------------------------------ rendering

    def _render_adapted(
        self,
        messages: list[JsonObject],
        variables: JsonObject,
        *,
        final: bool,
        now: datetime,
        limit: int,
    ) -> str:
        """Renders; where the template refuses, tries again with what it may accept."""
        refusal: InvalidRequest | None = None
        for adapt in (None, *conversation.ADAPTATIONS):
            adapted = adapt(messages) if adapt else messages
            if adapt and adapted == messages:
                continue
            messages = adapted
            try:
                return self._render(messages, variables, final=final, now=now, limit=limit)
            except InvalidRequest as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def _render(
        self,
        messages: list[JsonObject],
        variables: JsonObject,
        *,
        final: bool,
        now: datetime,
        limit: int,
    ) -> str:
        values: dict[str, object] = {
            "tools": None,
            "documents": None,
            **variables,
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": not final,
            "continue_final_message": final,
            "strftime_now": now.strftime,
        }
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(values):
                pieces.append(piece)
                length += len(piece) + 1
                if length > limit:
                    raise ContextLengthExceeded(
                        "The rendered prompt is far longer than any context.", param="messages"
                    )
        except InvalidRequest:
            raise
        except _Refusal as error:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        except Exception as error:  # a template is a program: anything may go wrong in it
            raise InvalidRequest(
                f"The model's chat template cannot render these messages ({type(error).__name__}).",
                param="messages",
            ) from error
        return "".join(pieces)

    # ------------------------------------------------------------ tokens

    def _prompt(self, text: str, pen: _Pen, request: ChatRequest) -> RenderedPrompt:
        reasoning = self._reasoning
        segments = self._control.split(text)
        opens = _ends_in_thought(segments, pen, reasoning, request)
        if request.reasoning.effort == "none" and reasoning.skipping:
            # R57: no reasoning tokens at all, also where the template has no switch for it
            if opens:
                segments[-1] += reasoning.closing
            elif _needs_empty_thought(self.source, reasoning, request):
                segments = self._control.split(text + reasoning.skipping)
            opens = False
        ids: list[int] = []
        breakpoints: list[int] = []
        plain: list[str] = []
        for i, segment in enumerate(segments):
            if i % 2:
                if (
                    breakpoints
                    and breakpoints[-1] == len(ids)
                    and segments[i - 1].endswith(pen.mark)
                ):
                    breakpoints[-1] += 1  # the turn's own end belongs to the prefix
                ids.append(self._control.ids[segment])
                plain.append(segment)
                continue
            pieces = segment.replace(pen.sentinel, "").split(pen.mark)
            ordinary = "".join(pieces)
            if not ordinary and len(pieces) == 1:
                continue
            plain.append(ordinary)
            encoded = self._tokenizer.encode(ordinary, special=False)
            for piece_end in _ends(pieces):
                breakpoints.append(len(ids) + self._num_within(encoded, piece_end))
            ids.extend(encoded)
        unique = tuple(sorted({b for b in breakpoints if b}))
        return RenderedPrompt("".join(plain), tuple(ids), unique, opens)

    def _num_within(self, token_ids: Sequence[int], prefix: str) -> int:
        """How many of the tokens lie wholly inside a prefix of their text."""
        left = len(prefix.encode())
        for number, token_id in enumerate(token_ids):
            left -= len(self._tokenizer.token_bytes(token_id))
            if left < 0:
                return number
        return len(token_ids)

    # ------------------------------------------------------------ what the template understands

    def _probe(self) -> Abilities:
        now = datetime(2000, 1, 1)
        user: JsonObject = {"role": "user", "content": "Hello"}

        def shown(messages: list[JsonObject], **variables: Json) -> str:
            try:
                return self._render(messages, variables, final=False, now=now, limit=_SPARE_OUTPUT)
            except InvalidRequest:
                return ""

        def call(arguments: Json) -> list[JsonObject]:
            function: JsonObject = {"name": "probename", "arguments": arguments}
            calls: list[Json] = [{"id": "call00000", "type": "function", "function": function}]
            return [user, {"role": "assistant", "content": "", "tool_calls": calls}]

        system: JsonObject = {"role": "system", "content": "probetext"}
        part: JsonObject = {"type": "text", "text": "probetext"}
        as_parts = shown([{"role": "user", "content": [part]}])
        as_text = shown([{"role": "user", "content": "probetext"}])
        tool: JsonObject = {
            "type": "function",
            "function": {"name": "probename", "description": "d", "parameters": {
                "type": "object", "properties": {}}},
        }  # fmt: skip
        objects = shown(call({"probekey": "probevalue"}))
        strings = shown(call('{"probekey": "probevalue"}'))
        knows_parts = "probetext" in as_parts and "'type'" not in as_parts
        calls = "tool_calls" in self.source and ("probename" in objects or "probename" in strings)
        return Abilities(
            parts=knows_parts and ("probetext" not in as_text or '"text"' in self.source
                                   or "'text'" in self.source or ".text" in self.source),
            system="probetext" in shown([system, user]),
            late_system="probetext" in shown([user, {**user, "role": "assistant"}, system, user]),
            developer="developer" in self.source,
            tools="probename" in shown([user], tools=[tool]),
            tool_calls=calls,
            tool_role=any(f"{q}tool{q}" in self.source for q in "'\"") or "ipython" in self.source,
            object_arguments='"probekey"' in objects or '"probekey"' not in strings,
            thinking_key=".thinking" in self.source and "reasoning_content" not in self.source,
        )  # fmt: skip


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's filter: plain `json.dumps`, nothing escaped for HTML.

    Private-use characters are never escaped: the guard's sentinel may be one.
    """
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
    return text


def _check_kwargs(kwargs: JsonObject) -> None:
    for name in kwargs:
        if name in _RESERVED:
            raise InvalidRequest(
                f"'{name}' is set by the server and cannot be a template variable.",
                param=f"chat_template_kwargs.{name}",
            )
    if not kwargs:
        return
    values = characters = 0
    stack: list[Json] = [kwargs]
    while stack:
        item = stack.pop()
        values += 1
        match item:
            case str():
                characters += len(item)
            case dict():
                characters += sum(map(len, item))
                stack.extend(item.values())
            case list():
                stack.extend(item)
            case _:
                pass
    if values > _MAX_KWARGS_VALUES or characters > _MAX_KWARGS_CHARACTERS:
        raise InvalidRequest("The template variables are too large.", param="chat_template_kwargs")


def _texts_of(request: ChatRequest) -> list[str]:
    """Every string that a request brings into its prompt (and some that it does not)."""
    value: Json = msgspec.to_builtins(
        [request.messages, request.tools, request.chat_template_kwargs, request.response_format]
    )
    return list(strings_in(value))


def _object_of(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _with_end_mark(message: JsonObject, mark: str) -> JsonObject:
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": mark}]}
    return {**message, "content": f"{content}{mark}"}


def _needs_empty_thought(source: str, reasoning: ReasoningFormat, request: ChatRequest) -> bool:
    """Whether nothing but the prompt's end keeps the model from thinking."""
    if request.continue_final_message:
        return False
    if reasoning.efforts:  # the least effort is still some; a call needs another channel
        return not request.tools
    return not any(name in source for name in ("enable_thinking", "if thinking", "not thinking"))


def _ends(pieces: Sequence[str]) -> list[str]:
    """For each mark the text before it."""
    return ["".join(pieces[: i + 1]) for i in range(len(pieces) - 1)]


def _ends_in_thought(
    segments: Sequence[str], pen: _Pen, reasoning: ReasoningFormat, request: ChatRequest
) -> bool:
    if not reasoning.start:
        return False
    for i in range(len(segments) - 1, -1, -1):
        segment = segments[i].replace(pen.sentinel, "").replace(pen.mark, "")
        if i % 2:
            return segment == reasoning.start
        if not segment.strip():
            continue
        if request.continue_final_message:
            start, end = segment.rfind(reasoning.start), segment.rfind(reasoning.end)
            if start >= 0 or end >= 0:
                return start > end
            continue
        return segment.rstrip().endswith(reasoning.start)
    return False
