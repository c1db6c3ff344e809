"""A client's Lark grammar for a custom tool, to be put inside a larger one, raw or JSON-quoted.

It is read token by token and written anew, so nothing in it reaches the grammar around it.
This module must not know: requests, formats, what is around it.
"""

import json
import re
from collections.abc import Iterator

from rejoinder.errors import InvalidRequest
from rejoinder.text import lark

MAX_CHARACTERS = 100_000
MAX_RULES = 500

_TOKENS = re.compile(
    r"""
    (?P<skip>[ \t]+|(?:\#|//)[^\n]*)
    |(?P<newline>(?:\r?\n)+)
    |(?P<string>"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|[^"\\\x00-\x1f\x7f])*"i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    |%(?P<keyword>[a-z]+)
    |(?P<special><[^<>\s]+>|@[\w\-]+)
    |(?P<word>[!?_]*[A-Za-z_][\w\-]*)
    |(?P<number>[+-]?\d+)
    |(?P<mark>->|\.\.|[|()\[\]{}:,.+*?~&])
    """,
    re.VERBOSE,
)

_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "NUMBER": r"(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "NEWLINE": r"(?:\r?\n)+",
}
"""Lark's common terminals."""

_QUOTED = '"\\' + "".join(map(chr, range(0x20)))
_PLAIN = r'[^"\\\x00-\x1F]'


def custom_grammar(definition: str, param: str) -> tuple[str, str]:
    """Two expressions for texts of this grammar: as they are, and as a JSON string, quotes and all.

    Raises InvalidRequest naming `param`.
    """
    if len(definition) > MAX_CHARACTERS:
        raise InvalidRequest(f"A grammar is limited to {MAX_CHARACTERS} characters.", param=param)
    try:
        tokens = list(_expanded(list(_lexed(definition))))
        free = " ".join(text for _, text in tokens)
        quoted = " ".join(_quoted_token(kind, text) for kind, text in tokens)
    except ValueError as error:
        raise InvalidRequest(f"This grammar cannot be enforced: {error}", param=param) from None
    return f"%lark {{\n{free}\n}}", f'"\\"" %lark {{\n{quoted}\n}} "\\""'


def _lexed(definition: str) -> Iterator[tuple[str, str]]:
    at = depth = num_rules = 0
    has_start = False
    while at < len(definition):
        found = _TOKENS.match(definition, at)
        if found is None:
            line = definition.count("\n", 0, at) + 1
            raise ValueError(f"line {line} cannot be read from {definition[at : at + 20]!r} on.")
        at = found.end()
        kind, text = found.lastgroup or "", found[0]
        depth += {"{": 1, "}": -1}.get(text, 0)
        num_rules += text == ":"
        if num_rules > MAX_RULES:
            raise ValueError(f"it has more than {MAX_RULES} rules and terminals.")
        if depth < 0:
            raise ValueError("a brace is closed that was not opened.")
        if kind == "special":
            raise ValueError(f"{text!r} is not supported.")
        if kind == "keyword" and text not in ("%import", "%ignore"):
            raise ValueError(f"{text!r} is not supported.")
        has_start = has_start or (kind == "word" and text.lstrip("?!") == "start")
        if kind != "skip":
            yield kind, text
    if depth:
        raise ValueError("a brace is not closed.")
    if not has_start:
        raise ValueError("there is no rule 'start'.")


def _expanded(tokens: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The tokens with imports replaced by what they import."""
    i = 0
    while i < len(tokens):
        if tokens[i] != ("keyword", "%import"):
            yield tokens[i]
            i += 1
            continue
        end = next((j for j in range(i, len(tokens)) if tokens[j][0] == "newline"), len(tokens))
        yield from _imported("".join(text for _, text in tokens[i + 1 : end]))
        i = end


def _imported(statement: str) -> Iterator[tuple[str, str]]:
    found = re.fullmatch(r"common\.(\w+)(?:->(\w+))?|common\(([\w,]+)\)", statement)
    if found is None:
        raise ValueError("only imports from 'common' are supported.")
    for name in (found[3] or found[1]).split(","):
        if name not in _COMMON:
            raise ValueError(f"'common.{name[:40]}' is not supported.")
        yield "newline", "\n"
        yield "word", found[2] or name
        yield "mark", ":"
        yield "regex", f"/{_COMMON[name]}/"


# ---------------------------------------------------------------- inside a JSON string


def _quoted_token(kind: str, text: str) -> str:
    match kind:
        case "string":
            return _quoted_string(text)
        case "regex":
            return _quoted_regex(text)
        case _:
            return text


def _quoted_string(text: str) -> str:
    flag = "i" if text.endswith("i") else ""
    inner = text.removesuffix("i")[1:-1]
    inner = re.sub(r"(?<!\\)((?:\\\\)*)\\x([0-9a-fA-F]{2})", r"\1\\u00\2", inner)
    value: str = json.loads(f'"{inner}"')
    parts = re.split(f"([{re.escape(_QUOTED)}])", value)
    written = [
        lark.string(json.dumps(part)[1:-1]) if part in _QUOTED else lark.string(part) + flag
        for part in parts
        if part
    ]
    return f"({' '.join(written)})" if written else '""'


def _quoted_regex(text: str) -> str:
    """The pattern for its matches' JSON spelling: each character class gets its escapes."""
    body, _, flags = text[1:].rpartition("/")
    if set(flags) - set("is"):
        raise ValueError(f"the flags of {text[:40]!r} are not supported.")
    any_char = "(?s:.)" if "s" in flags else "."
    pieces = []
    for atom in _atoms(body):
        if atom == ".":
            atom = any_char
        pieces.append(atom if _is_syntax(atom) else _quoted_atom(atom))
    return f"/{''.join(pieces)}/{flags}"


_ATOMS = re.compile(
    r"\\[pP]\{\w+\}|\\x\{[0-9a-fA-F]+\}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\."
    r"|\(\?(?:[imsx\-]*[:)]|P?<\w+>)|\{\d*,?\d*\}|[()|*+?^$]|.",
    re.DOTALL,
)


def _atoms(body: str) -> Iterator[str]:
    at = 0
    while at < len(body):
        if body[at] == "[":
            end = _class_end(body, at)
        else:
            found = _ATOMS.match(body, at)
            assert found is not None
            end = found.end()
        yield body[at:end]
        at = end


def _class_end(body: str, at: int) -> int:
    """Where a character class ends, with classes inside it."""
    depth, start = 0, at
    while at < len(body):
        if body[at] == "\\":
            at += 1
        elif body[at] == "[":
            depth += 1
        elif body[at] == "]" and at > start + 1 + (body[start + 1 : start + 2] == "^"):
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise ValueError("a character class is not closed.")


def _is_syntax(atom: str) -> bool:
    return atom in ("(", ")", "|", "*", "+", "?", "^", "$") or (
        (atom.startswith(("(?", "{")) and atom != "(?s:.)") or atom in ("\\b", "\\B", "\\A", "\\z")
    )


def _quoted_atom(atom: str) -> str:
    """One character's matcher, for the character as it is written in a JSON string."""
    try:
        matcher = re.compile(atom.replace("\\x{", "\\x").replace("}", "") if "x{" in atom else atom)
        specials = [char for char in _QUOTED if matcher.fullmatch(char)]
    except re.error:
        specials = []  # a class that only the engine knows: its plain characters
    if not specials and not atom.startswith(("[", "(", "\\")):
        return atom
    inside = atom if atom.startswith(("[", "\\")) else "[^\\n]" if atom == "." else "[\\s\\S]"
    plain = f"[{inside}&&{_PLAIN}]"
    if atom in ("\\n", "\\r", "\\t", "\\f", "\\v", '"', "\\\\", '\\"') or (
        specials and len(atom) == 1 and atom != "."
    ):
        plain = ""
    escapes = [re.escape(json.dumps(char)[1:-1]) for char in specials]
    ways = "|".join([*([plain] if plain else []), *(f"(?-i:{one})" for one in escapes)])
    return f"(?:{ways})"
