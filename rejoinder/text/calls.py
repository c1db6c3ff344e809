"""The call that is being read: known name or not, its arguments checked at the end.

This module must not know: how formats look, tokens, events.
"""

import jiter
import msgspec

from rejoinder.text.pieces import Piece
from rejoinder.types import AnyTool, CustomTool, Json, JsonObject, ToolChoice


class KnownTools:
    """The tools that may be called (R139, R140): the request's, or the allowed ones of them."""

    __slots__ = ("_custom", "_parameters")

    def __init__(self, tools: tuple[AnyTool, ...], choice: ToolChoice) -> None:
        self._custom: set[str] = set()
        self._parameters: dict[str, JsonObject | None] = {}
        if choice.mode == "none":
            return
        for tool in tools:
            if choice.allowed is not None and tool.name not in choice.allowed:
                continue
            if isinstance(tool, CustomTool):
                self._custom.add(tool.name)
                self._parameters[tool.name] = None
            else:
                self._parameters[tool.name] = tool.parameters

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def is_custom(self, name: str) -> bool:
        return name in self._custom

    def parameters(self, tool: str) -> JsonObject | None:
        """The JSON Schema of a tool's arguments, if it has one."""
        return self._parameters.get(tool)


class OpenCall:
    """The sink of a reader: writes pieces of a call whose name is known, none of another.

    A custom tool's arguments are held: what leaves is the text in their `input`.
    """

    __slots__ = (
        "_arguments",
        "_name",
        "_out",
        "_tools",
        "is_open",
        "is_unknown",
        "only_known",
        "place",
    )

    def __init__(self, tools: KnownTools) -> None:
        self._tools = tools
        self.place = 0
        """Where in the answer's text the reader is."""
        self.only_known = False
        """A name that no tool has means that this is no call."""
        self.begin([])

    def begin(self, out: list[Piece]) -> None:
        self._out = out
        self._name = ""
        self._arguments: list[str] = []
        self.is_open = False
        self.is_unknown = False

    def into(self, out: list[Piece]) -> None:
        """Where the next pieces go."""
        self._out = out

    @property
    def has_arguments(self) -> bool:
        return bool(self._arguments)

    def name(self, name: str) -> bool:
        if name not in self._tools:
            self.is_unknown = True
            return not self.only_known
        self._name = name
        self.is_open = True
        self._out.append(Piece("call", name, self.place))
        return True

    def arguments(self, fragment: str) -> None:
        if self.is_unknown or not fragment:
            return
        self._arguments.append(fragment)
        if not self._tools.is_custom(self._name):
            self._out.append(Piece("arguments", fragment, self.place))

    def finish(self, *, free_text: bool = False) -> None:
        """The call has ended; its arguments must be a JSON object, a custom tool's may be text."""
        text = "".join(self._arguments)
        if self._tools.is_custom(self._name):
            value = text if free_text else _input(text)
            if value is not None:
                if value:
                    self._out.append(Piece("arguments", value, self.place))
                self._out.append(Piece("end", "", self.place))
                return
            self._out.append(Piece("arguments", text, self.place))
            self._out.append(Piece("bad", "", self.place))
        else:
            self._out.append(Piece("end" if _is_object(text) else "bad", "", self.place))

    def fail(self) -> None:
        """The call, whose name is known, cannot be read to its end."""
        if self._tools.is_custom(self._name):
            text = "".join(self._arguments)
            if text:
                self._out.append(Piece("arguments", text, self.place))
        self._out.append(Piece("bad", "", self.place))


def _is_object(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        jiter.from_json(text.encode(), allow_inf_nan=False)
    except ValueError:
        return False
    return True


def _input(text: str) -> str | None:
    """The one string in a custom tool's arguments, or the string that they are."""
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    match value:
        case str():
            return value
        case {"input": str() as only, **others} if not others:
            return only
        case _:
            return None
