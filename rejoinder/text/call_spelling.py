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

    One call is `before`, with the tool's name for `{name}`, its arguments, `after`. `trigger` begins
    `begin` + `before`: text in which it appears becomes a call there. Without one a call is the
    whole answer, and `trigger_pattern` tells how such an answer begins at the start of a line.
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

    def write(self, grammar: Lark, tools: Sequence[CallableTool], *, most: int | None) -> str:
        """An expression for one call or more of these tools, without the trigger in front."""
        one = grammar.rule("call", " | ".join(self._call(grammar, tool) for tool in tools))
        first = grammar.rule("calls", "")
        return first

    def _call(self, grammar: Lark, tool: CallableTool) -> str:
        lead, _, rest = self.before.partition("{name}")
        name = json.dumps(tool.name, ensure_ascii=False) if self.name == "json" else tool.name
        return " ".join(
            part
            for part in (
                grammar.markup(lead),
                lark.string(name),
                grammar.markup(rest),
                self.arguments(grammar, tool),
                grammar.markup(self.after),
            )
            if part
        )
