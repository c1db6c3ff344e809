"""Text → pieces: reasoning, calls and content told apart, for any split of the text.

One table-driven machine for every format: states, markers, transitions, and hold-back of what may
be the start of a marker. This module must not know: tokens, events, ids.
"""

from typing import Protocol

from rejoinder.text.pieces import Piece
from rejoinder.types import AnyTool, EngineFinishReason, ToolChoice


class ParserSpec(Protocol):
    """The part of a choice's specification that its text is read by."""

    @property
    def tools(self) -> tuple[AnyTool, ...]: ...
    @property
    def tool_choice(self) -> ToolChoice: ...
    @property
    def tool_format(self) -> str: ...
    @property
    def reasoning_format(self) -> str: ...
    @property
    def opens_thinking(self) -> bool: ...


class Parser(Protocol):
    """`feed` the text, `flush` at its end."""

    @property
    def reads_calls(self) -> bool: ...

    def is_custom(self, name: str) -> bool: ...

    def feed(self, text: str) -> list[Piece]: ...

    def flush(self, reason: EngineFinishReason) -> list[Piece]: ...


def parser_for(spec: ParserSpec) -> Parser | None:
    """None: all of the text is content."""
    return None
