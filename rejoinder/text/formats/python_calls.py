"""The reader of calls written as Python: `name(key="value", other=[1, None])`.

Literals become JSON in one spelling as they come; integers keep every digit; nothing is evaluated.
This module must not know: markers of a format, events.
"""

import json
import re

from rejoinder.text.formats.format import CallSink, Schemas, Status

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_SPACE = re.compile(r"\s*")
_KEYWORD = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)")
_KEYWORD_PREFIX = re.compile(r"[A-Za-z_]\w*\s*=?\Z")
_WORD = re.compile(r"[A-Za-z_]\w*")
_WORDS = {"True": "true", "False": "false", "None": "null"} | {
    word: word for word in ("true", "false", "null")
}
_NUMBER = re.compile(r"[+-]?[0-9.][0-9A-Za-z_.+-]*")
_HEX = re.compile(r"([+-]?)0[xX]([0-9a-fA-F]+)")
_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:(\.)([0-9]*))?([eE][+-]?[0-9]+)?")
_PLAIN = {'"': re.compile(r'[^"\\\n]*'), "'": re.compile(r"[^'\\\n]*")}
_LONG_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPE = re.compile(
    r"\\(?:(\n)|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL
)
_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_LONGEST_ESCAPE = 10
_MAX_NAME = 256
_MAX_NUMBER = 4096


class PythonCallReader:
    """One call, up to its closing parenthesis. Arguments without a keyword get the names of the
    tool's parameters, in their order."""

    def __init__(self, sink: CallSink, schemas: Schemas) -> None:
        self.status: Status = "more"
        self._sink = sink
        self._schemas = schemas
        self._state = "name"
        self._names: list[str] = []
        self._count = 0
        self._stack: list[str] = []
        self._quote = ""
        self._needs_separator = False

    def feed(self, text: str, position: int, *, final: bool) -> int:
        while self.status == "more":
            state = self._state
            before = position
            match state:
                case "name":
                    position = self._name(text, position)
                case "argument":
                    position = self._argument(text, position)
                case "string":
                    position = self._string(text, position)
                case _:
                    position = self._token(text, position)
            if position == before and self._state == state:
                break
        return position

    def _bad(self, position: int) -> int:
        self.status = "bad"
        return position

    def _name(self, text: str, position: int) -> int:
        position = _skip(text, position)
        match = _NAME.match(text, position)
        if match is None:
            return position if position == len(text) else self._bad(position)
        after = _skip(text, match.end())
        if after == len(text):
            return position if after - position < _MAX_NAME else self._bad(position)
        if text[after] != "(":
            return self._bad(position)
        if not self._sink.name(match[0]):
            return self._bad(position)
        parameters = self._schemas.parameters(match[0]) or {}
        properties = parameters.get("properties")
        self._names = list(properties) if isinstance(properties, dict) else []
        self._state = "argument"
        return after + 1

    def _argument(self, text: str, position: int) -> int:
        position = _skip(text, position)
        if position == len(text):
            return position
        if text[position] == ")":
            self._sink.arguments("}" if self._count else "{}")
            self.status = "done"
            return position + 1
        if text[position] == "," and self._count:
            return position + 1
        match = _KEYWORD.match(text, position)
        if match is not None:
            if match.end() == len(text):
                return position  # `=` may be the first half of `==`
            key, position = match[1], match.end()
        elif _KEYWORD_PREFIX.match(text, position):
            return position if len(text) - position < _MAX_NAME else self._bad(position)
        elif self._count < len(self._names):
            key = self._names[self._count]
        else:
            return self._bad(position)
        spelled = json.dumps(key, ensure_ascii=False)
        self._sink.arguments(f"{', ' if self._count else '{'}{spelled}: ")
        self._count += 1
        self._state = "value"
        return position

    def _token(self, text: str, position: int) -> int:
        """One token of a value outside strings."""
        position = _skip(text, position)
        if position == len(text):
            return position
        char = text[position]
        if char in "\"'":
            return self._open_string(text, position, char)
        if char in "[({":
            self._stack.append("}" if char == "{" else "]")
            self._sink.arguments("{" if char == "{" else "[")
            return position + 1
        if char in "])}":
            return self._close(position, char)
        if char == ",":
            if not self._stack:
                return self._bad(position)
            return self._comma(text, position)
        if char == ":":
            if not self._stack:
                return self._bad(position)
            self._sink.arguments(": ")
            return position + 1
        return self._scalar(text, position)

    def _close(self, position: int, char: str) -> int:
        if not self._stack or self._stack[-1] != ("}" if char == "}" else "]"):
            return self._bad(position)
        self._sink.arguments(self._stack.pop())
        return self._after_value(position + 1)

    def _comma(self, text: str, position: int) -> int:
        after = _skip(text, position + 1)
        if after == len(text):
            return position
        if text[after] not in "])}":  # Python allows a comma at the end
            self._sink.arguments(", ")
        return after

    def _after_value(self, position: int) -> int:
        if not self._stack:
            self._state = "argument"
        return position

    def _scalar(self, text: str, position: int) -> int:
        word = _WORD.match(text, position)
        match = word or _NUMBER.match(text, position)
        if match is None:
            waits = text[position:] in ("+", "-")
            return position if waits else self._bad(position)
        if match.end() == len(text):
            return position if match.end() - position < _MAX_NUMBER else self._bad(position)
        spelled = _WORDS.get(match[0]) if word else _number(match[0])
        if spelled is None:
            return self._bad(position)
        self._sink.arguments(spelled)
        return self._after_value(match.end())

    def _open_string(self, text: str, position: int, char: str) -> int:
        start = text[position : position + 3]
        if len(start) < 3 and start == char * len(start):
            return position  # an empty string, or three quotes
        long = start == char * 3
        self._quote = start if long else char
        self._sink.arguments('"')
        self._state = "string"
        return position + len(self._quote)

    def _string(self, text: str, position: int) -> int:
        quote = self._quote
        patterns = _PLAIN if len(quote) == 1 else _LONG_PLAIN
        match = patterns[quote[0]].match(text, position)
        end = match.end() if match else position
        if end > position:
            self._sink.arguments(json.dumps(text[position:end], ensure_ascii=False)[1:-1])
        if end == len(text):
            return end
        if text[end] == "\\":
            return self._escape(text, end)
        if text[end] == "\n":
            return self._bad(end)
        rest = text[end : end + len(quote)]
        if rest == quote:
            self._sink.arguments('"')
            self._state = "value"
            return self._after_value(end + len(quote))
        if quote.startswith(rest) and end + len(rest) == len(text):
            return end
        self._sink.arguments(json.dumps(text[end])[1:-1])
        return end + 1

    def _escape(self, text: str, position: int) -> int:
        match = _ESCAPE.match(text, position)
        if match is None or (match.end() == len(text) and match[5]):
            return position
        newline, two, four, eight, octal, char = match.groups()
        if char in ("x", "u", "U", "N"):
            # not complete yet, or no escape
            waits = char != "N" and len(text) - position < _LONGEST_ESCAPE
            return position if waits else self._bad(position)
        if newline:
            return match.end()
        if char is not None:
            value = _SIMPLE.get(char, "\\" + char)
        else:
            code = int(octal, 8) if octal else int(two or four or eight, 16)
            if code > 0x10FFFF:
                return self._bad(position)
            value = chr(code)
        lone = len(value) == 1 and 0xD800 <= ord(value) <= 0xDFFF
        self._sink.arguments(json.dumps(value, ensure_ascii=lone)[1:-1])
        return match.end()


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _number(text: str) -> str | None:
    """A Python number's JSON spelling, with every digit; None: it is none."""
    text = text.replace("_", "")
    if match := _HEX.fullmatch(text):
        return ("-" if match[1] == "-" else "") + str(int(match[2], 16))
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match[2] or match[4]):
        return None
    sign, whole, point, fraction, exponent = match.groups()
    number = ("-" if sign == "-" else "") + (whole.lstrip("0") or "0")
    if point:
        number += "." + (fraction or "0")
    return number + (exponent or "")
