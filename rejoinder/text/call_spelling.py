"""How a format writes calls, as markup that a grammar can be made from. Rows live in `formats/`.

This module must not know: requests, schemas, any particular format.
"""

import json
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from rejoinder.text import lark
from rejoinder.text.lark import Lark
from rejoinder.types import JsonObject


class CallableTool(Struct, frozen=True):
    """A tool that may be called: its name, and the plain schema of its arguments."""

    name: str
    parameters: JsonObject


ArgumentsWriter = Callable[[Lark, CallableTool], str]
"""An expression for the arguments of one call."""


def json_arguments(grammar: Lark, tool: CallableTool) -> str:
    """The arguments as one JSON object."""
    return lark.schema(tool.parameters)


class CallSpelling(Struct, frozen=True, kw_only=True):
    """The markup of calls. `begin` and `end` stand around all of them, `between` between two.

    One call is `before`, with the tool's name for `{name}`, its arguments, then `after`. `trigger`:
    how `begin` and `before` begin; where it appears in running text, a call must follow.
    """

    before: str
    after: str
    begin: str = ""
    between: str = ""
    end: str = ""
    trigger: str = ""
    name: Literal["json", "plain"] = "json"
    arguments: ArgumentsWriter = json_arguments
    many: bool = True

    def calls(self, grammar: Lark, tools: Sequence[CallableTool]) -> str:
        """An expression for one or more calls of these tools, after the trigger."""
        lead, _, rest = self.before.partition("{name}")
        named = grammar.rule("named", " | ".join(self._named(grammar, t, rest) for t in tools))
        first = grammar.markup(f"{self.begin}{lead}".removeprefix(self.trigger))
        more = grammar.markup(f"{self.between}{lead}")
        end = grammar.markup(self.end)
        return f"{first} {named} ({more} {named})* {end}"

    def call(self, grammar: Lark, tools: Sequence[CallableTool]) -> str:
        """An expression for exactly one call, after the trigger."""
        lead, _, rest = self.before.partition("{name}")
        named = grammar.rule("named", " | ".join(self._named(grammar, t, rest) for t in tools))
        first = grammar.markup(f"{self.begin}{lead}".removeprefix(self.trigger))
        return f"{first} {named} {grammar.markup(self.end)}"

    def _named(self, grammar: Lark, tool: CallableTool, rest: str) -> str:
        quoted = json.dumps(tool.name, ensure_ascii=False) if self.name == "json" else tool.name
        name, middle = lark.string(quoted), grammar.markup(rest)
        arguments, after = self.arguments(grammar, tool), grammar.markup(self.after)
        return f"{name} {middle} {arguments} {after}"
