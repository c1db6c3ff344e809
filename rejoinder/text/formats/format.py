"""What a tool format is: how calls look in the model's text, as data for the parser.

A row says which markers begin and end calls; a reader takes the body of one call apart. This module
must not know: events, requests, any particular format.
"""

import json
import re
from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct

from rejoinder.types import Json, JsonObject

State = Literal["text", "section", "call"]
"""Where a marker leads: to visible text, between the calls of a section, into one call's body."""


class Schemas(Protocol):
    """The tools of the request, for readers whose values have no types of their own."""

    def parameters(self, tool: str) -> JsonObject | None: ...


class CallSink(Protocol):
    """Where a reader puts what it has understood of one call, in this order."""

    def name(self, name: str) -> bool:
        """Whether it may be a call: if not, the reader's status is "bad" at once."""
        ...

    def arguments(self, fragment: str) -> None: ...


Status = Literal["more", "done", "bad"]


class Reader(Protocol):
    """Takes one call's body apart, whatever the pieces are.

    `feed` reads `text` from `position` and returns how far it has got; what is left comes again,
    with more behind it. `final`: nothing comes any more. Afterwards `status` says whether the call
    is complete ("done": the rest of the text is not the call's), or cannot be one ("bad").
    """

    status: Status

    def feed(self, text: str, position: int, *, final: bool) -> int: ...


ReaderFactory = Callable[[CallSink, Schemas], Reader]


def spell_json(name: str, arguments: str) -> str:
    """A call in the format `json`, also for templates that have no words for calls."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'


def describe_json(tools: list[Json]) -> str:
    """The system prompt's words about tools for a model whose template knows none."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You can call these tools. Each line is one tool, its parameters are a JSON Schema:\n"
        f"{lines}\n"
        "To call a tool, answer with one JSON object and nothing else:\n"
        '{"name": "<name of the tool>", "arguments": {<its arguments>}}\n'
        "The result comes back between <tool_response> and </tool_response>. "
        "If no tool is needed, answer in plain words."
    )


class Speller(Protocol):
    """How a format writes a call in a prompt's history."""

    def __call__(self, name: str, arguments: str) -> str: ...


class ToolFormat(Struct, frozen=True, kw_only=True):
    """One way of writing calls.

    `text` and `section` are the transitions: a marker and the state it leads to, in visible text
    and between calls. `separators` are the characters that may stand between calls,
    `starts` how a call begins that needs no marker of its own in a section. `bare`: a call
    may begin without a marker, at the start of a line, where this matches. `template_marks`: a chat
    template that contains all of one group writes this format.
    """

    name: str
    reader: ReaderFactory | None = None
    text: dict[str, State] = {}
    section: dict[str, State] = {}
    separators: str = " \t\r\n"
    starts: re.Pattern[str] = re.compile(r"\{")
    bare: re.Pattern[str] | None = None
    aliases: tuple[str, ...] = ()
    template_marks: tuple[tuple[str, ...], ...] = ()
    inner_markers: frozenset[str] = frozenset()
    """Markers that a reader looks for inside a call."""
    reasoning: str | None = None
    """The reasoning format that comes with it, where one cannot be without the other."""
    spell: Speller = spell_json
    describe: Callable[[list[Json]], str] = describe_json

    @property
    def markers(self) -> frozenset[str]:
        """Every marker; one that is a control token of the model must reach the parser as text."""
        return frozenset((*self.text, *self.section))
