"""Writing llguidance's Lark dialect: rules, literals with control tokens, schemas, regexes.

Everything that came from a client is escaped here, so no text can become a rule.
This module must not know: requests, tools, formats of calls.
"""

import json
import re
from collections.abc import Mapping

from rejoinder.types import Json

JSON_SPELLING: dict[str, Json] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
"""The one spelling of constrained JSON: a space after commas and colons and no other white space.

It is what models write on one line unasked, and it leaves the grammar the most tokens to force.
"""

INPUT_KEY = '"input": '
"""The one key of a custom tool's arguments, where they are JSON."""

ANY_TEXT = "/(?s:.*)/"
"""Free text: any tokens but control tokens."""

_TOKEN_NAME = re.compile(r"<[^<>\s\[\]]+>")


class Lark:
    """Rules of one grammar while it is written. `control_tokens`: the model's, by their text."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self._control_tokens = dict(control_tokens)
        names = sorted(control_tokens, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names))) if names else None
        self._rules: dict[str, str] = {}

    def rule(self, name: str, body: str) -> str:
        """Adds a rule under a free name like `name`; returns the name. An equal one is reused."""
        head, bracket, attributes = name.partition("[")
        free = head
        count = 1
        while self._rules.get(free, f"{bracket}{attributes}: {body}") != (
            f"{bracket}{attributes}: {body}"
        ):
            count += 1
            free = f"{head}_{count}"
        self._rules[free] = f"{bracket}{attributes}: {body}"
        return free

    def source(self, start: str) -> str:
        """The grammar whose answers are what the expression `start` matches."""
        rules = [f"{name}{rule}" for name, rule in self._rules.items()]
        return "\n".join([f"start: {start}", *rules]) + "\n"

    def markup(self, text: str) -> str:
        """An expression for this text, in which control tokens' names are those tokens."""
        parts: list[str] = []
        at = 0
        for found in self._split.finditer(text) if self._split is not None else ():
            parts += [string(text[at : found.start()]), self.token(found.group())]
            at = found.end()
        return " ".join(part for part in [*parts, string(text[at:])] if part)

    def token(self, name: str) -> str:
        """An expression for one control token."""
        return name if _TOKEN_NAME.fullmatch(name) else f"<[{self._control_tokens[name]}]>"

    def is_token(self, text: str) -> bool:
        return text in self._control_tokens

    def until(self, *marks: str, never: str = "") -> str:
        """Any text up to and with the first of the marks, which may be control tokens or not.

        `never`: what the text must not begin with, because another rule waits for it.
        """
        tokens = [self.token(mark) for mark in marks if self.is_token(mark)]
        texts = [escaped(mark) for mark in marks if not self.is_token(mark)]
        ways = [f"{self.text(never=never)} ({' | '.join(tokens)})"] if tokens else []
        if texts:
            before = f"(?:{_not_beginning_with(never)})?" if never else "(?s:.*)"
            ways.append(self.rule("until[lazy]", f"/{before}(?:{'|'.join(texts)})/"))
        return f"({' | '.join(ways)})"

    def until_line(self, start: str, *, never: str = "") -> str:
        """Any text up to and with the first line that begins with the pattern `start`."""
        before = _not_beginning_with(never) if never and not self.is_token(never) else "(?s:.*)"
        return self.rule("until[lazy]", f"/(?:(?:{before})\\n)?[ \\t]*(?:{start})/")

    def text(self, *, never: str = "") -> str:
        """Any text without control tokens, that does not begin with `never`."""
        if not never or self.is_token(never):
            return self.rule("TEXT", ANY_TEXT)
        return self.rule("TEXT", f"/{_not_beginning_with(never)}/")


def _not_beginning_with(text: str) -> str:
    """A pattern for all other texts. Not `~`: past the beginning this is free text to the engine,
    for which masks cost nothing."""
    apart = (f"{escaped(text[:i])}[^{escaped(char)}](?s:.*)" for i, char in enumerate(text))
    shorter = (escaped(text[:i]) for i in range(1, len(text)))
    return "|".join([*apart, *shorter])


def string(text: str) -> str:
    """A literal, or nothing for no text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else ""


def escaped(text: str) -> str:
    """A literal inside a regular expression."""
    return "".join(
        char if char.isalnum() or char == " " or ord(char) > 0x7F else f"\\x{{{ord(char):x}}}"
        for char in text
    )


def regex(pattern: str) -> str:
    """A regular expression that matches the whole text; anchors around all of it are dropped."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1:
        pattern = pattern[:-1]
    body = re.sub(r"\\(.)|/", lambda found: found[0] if found[1] else "\\/", pattern, flags=re.S)
    return f"/(?:{body})/".replace("\n", "\\n").replace("\r", "\\r")


def schema(value: Json) -> str:
    """JSON that fits a (plain) schema, in the one spelling."""
    rules = value if isinstance(value, dict) else {"allOf": [value]}
    return "%json " + json.dumps({"x-guidance": JSON_SPELLING, **rules}, ensure_ascii=True)
