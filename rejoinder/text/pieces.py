"""What the parser makes of text: pieces with their places, before they are events of a choice.

This module must not know: how formats look, tokens, indices.
"""

from typing import Literal, NamedTuple

Kind = Literal["content", "reasoning", "markup", "thought", "call", "arguments", "end", "bad"]


class Piece(NamedTuple):
    """`end`: the place in the answer's text, in characters, up to which it has been read.

    content, reasoning: text as the model wrote it.
    markup, thought: framing that is not shown; the second counts as reasoning.
    call: a call opens, `text` is its name. arguments: a fragment. end: the call is complete.
    bad: a call that is none. Before `call`: `text` is all of it, with its markers. After: its
    arguments are not JSON, or never ended.
    """

    kind: Kind
    text: str
    end: int
