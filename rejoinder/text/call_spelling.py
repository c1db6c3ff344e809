"""How a format writes calls, as markup that a grammar can be made from. Rows: `spellings.py`.

This module must not know: requests, any particular format.
"""

import json
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from rejoinder.text import lark
from rejoinder.text.lark import Lark
from rejoinder.types import JsonObject


class CallableTool(Struct, frozen=True):
    """A tool that may be called: its name and the plain schema of its arguments.

    `free_text`: a custom tool, whose argument is this expression of raw text; `quoted_text` is the
    same inside a JSON string, where the expression of the whole call's JSON needs it.
    """

    name: str
    parameters: JsonObject
    free_text: str = ""
    quoted_text: str = ""


_NUMBER = "/[0-9]{1,3}/"

ArgumentsWriter = Callable[[Lark, CallableTool], str]
"""An expression for the arguments of one call."""


def json_arguments(grammar: Lark, tool: CallableTool) -> str:
    """The arguments as one JSON object."""
    if tool.quoted_text:
        return (
            f"{lark.string(chr(123) + lark.INPUT_KEY)} {tool.quoted_text} {lark.string(chr(125))}"
        )
    return lark.schema(tool.parameters)


def raw_arguments(grammar: Lark, tool: CallableTool) -> str:
    """The arguments as one JSON object, a custom tool's as they are."""
    return tool.free_text or json_arguments(grammar, tool)


class CallSpelling(Struct, frozen=True, kw_only=True):
    """One way to write calls. `begin` and `end` stand around all of them, `between` between two.

    One call is `before`, with the tool's name for `{name}` and any number for `{number}`, its
    arguments, then `after`. In running text a call begins where `trigger` appears, with which
    `begin` and `before` begin; or, without one, at the start of a line that the pattern
    `line_start` matches, with a tool's name for `{names}`, up to and with the name and `taken`.
    `token`: only for models that have this control token.
    """

    before: str
    after: str
    begin: str = ""
    between: str = ""
    end: str = ""
    trigger: str = ""
    line_start: str = ""
    taken: str = ""
    token: str = ""
    name: Literal["json", "plain"] = "json"
    arguments: ArgumentsWriter = json_arguments
    many: bool = True

    def calls(
        self, grammar: Lark, tools: Sequence[CallableTool], number: Literal["one", "many"]
    ) -> str:
        """An expression for calls of these tools, after the trigger."""
        lead, _, rest = self.before.partition("{name}")
        named = [f"{lark.string(self._name(t))} {self._tail(grammar, t, rest)}" for t in tools]
        one = grammar.rule("named", " | ".join(named))
        first = grammar.markup(f"{self.begin}{lead}".removeprefix(self.trigger))
        more = f"({grammar.markup(f'{self.between}{lead}')} {one})*"
        return (
            f"{first} {one} {more if self.many and number == 'many' else ''} {self._end(grammar)}"
        )

    def in_text(
        self,
        grammar: Lark,
        tools: Sequence[CallableTool],
        number: Literal["one", "many"],
        never: str,
    ) -> str:
        """An expression for text that leads to calls. `never`: how the text must not begin."""
        if self.trigger:
            return (
                f"{grammar.until(self.trigger, never=never)} {self.calls(grammar, tools, number)}"
            )
        _, _, rest = self.before.partition("{name}")
        ways = []
        for tool in tools:
            start = self.line_start.replace("{names}", lark.escaped(self._name(tool)))
            until = grammar.until_line(start, never=never)
            ways.append(f"{until} {self._tail(grammar, tool, rest.removeprefix(self.taken))}")
        return f"({' | '.join(ways)}) {self._end(grammar)}"

    def _name(self, tool: CallableTool) -> str:
        return json.dumps(tool.name, ensure_ascii=False) if self.name == "json" else tool.name

    def _tail(self, grammar: Lark, tool: CallableTool, rest: str) -> str:
        """What follows a name; one rule a tool, so that it is compiled once."""
        middle = f" {_NUMBER} ".join(grammar.markup(part) for part in rest.split("{number}"))
        parts = (middle, self.arguments(grammar, tool), grammar.markup(self.after))
        return grammar.rule("arguments", " ".join(parts))

    def _end(self, grammar: Lark) -> str:
        return grammar.markup(self.end)
