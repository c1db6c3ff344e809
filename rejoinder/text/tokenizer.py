"""A Hugging Face tokenizer and its chat template, read from a model's folder; for fleets.

Text that people wrote is encoded without control tokens, and every token has its exact bytes. This
module must not know: messages, engines, how a template is rendered.
"""

import itertools
import json
import re
from pathlib import Path

import tokenizers
from msgspec import Struct

from rejoinder.errors import InvalidParameter
from rejoinder.types import Json, JsonObject

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "<end_of_turn>", "</s>")
"""Control tokens that end a turn, for folders that do not say which do."""


class TokenizerFiles(Struct, frozen=True):
    """What a model's folder says beside its vocabulary."""

    chat_template: str
    bos_token: str
    eos_token: str


class HfTokenizer:
    """The protocol `Tokenizer` over a `tokenizer.json`. `files`: template and special tokens.

    `path`: the folder, or the file in it. Raises ValueError when it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        folder = path if path.is_dir() else path.parent
        file = folder / "tokenizer.json" if path.is_dir() else path
        try:
            source = file.read_text(encoding="utf-8")
            described = json.loads(source)
            self._marked = _tokenizer(source)
            self._plain = _tokenizer(source)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"cannot read the tokenizer {file}: {error}") from error
        self._plain.encode_special_tokens = True
        config = _json(folder / "tokenizer_config.json")
        self.files = TokenizerFiles(
            _chat_template(folder, config), _token(config, "bos_token"), _token(config, "eos_token")
        )
        self._control = {
            token.content: token_id
            for token_id, token in self._marked.get_added_tokens_decoder().items()
            if token.special
        }
        self._control_ids = frozenset(self._control.values())
        self._ends = _end_ids(folder, self._control, self.files.eos_token, self._marked)
        self._bytes = _vocabulary(self._marked, described, self._control)
        self._breaks = _breaks(self._control)

    @property
    def end_token_ids(self) -> frozenset[int]:
        return self._ends

    @property
    def control_tokens(self) -> dict[str, int]:
        return self._control

    def encode(self, text: str, *, special: bool) -> list[int]:
        if special:
            return list(self._marked.encode(text, add_special_tokens=False).ids)
        ids = self._encode_plain(text)
        if self._breaks is None or self._control_ids.isdisjoint(ids):
            return ids
        # some models have control tokens in the vocabulary that ordinary text is cut into
        cuts = [0, *(match.start() + 1 for match in self._breaks.finditer(text)), len(text)]
        pieces = (text[start:end] for start, end in itertools.pairwise(cuts))
        return [token_id for piece in pieces for token_id in self._encode_plain(piece)]

    def _encode_plain(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, token_id: int) -> bytes:
        found = self._bytes.get(token_id)
        if found is None:
            raise InvalidParameter(f"{token_id} is not a token of this model.")
        return found


def _tokenizer(source: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(source)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _breaks(control: dict[str, int]) -> re.Pattern[str] | None:
    texts = sorted((text for text in control if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def _json(path: Path) -> JsonObject:
    """A JSON file of the folder; empty where there is none."""
    if not path.exists():
        return {}
    try:
        value: Json = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    return value if isinstance(value, dict) else {}


def _token(config: JsonObject, name: str) -> str:
    match config.get(name):
        case str() as text:
            return text
        case {"content": str() as text}:
            return text
        case _:
            return ""


def _chat_template(folder: Path, config: JsonObject) -> str:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template") or _json(folder / "chat_template.json").get(
        "chat_template"
    )
    match template:
        case str():
            return template
        case list():  # several by name: the one for tools knows the most
            named = {
                str(item.get("name")): str(item.get("template"))
                for item in template
                if isinstance(item, dict)
            }
            return named.get("tool_use") or named.get("default") or ""
        case _:
            return ""


def _end_ids(
    folder: Path, control: dict[str, int], eos: str, tokenizer: tokenizers.Tokenizer
) -> frozenset[int]:
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        match _json(folder / name).get("eos_token_id"):
            case int() as one:
                found.add(one)
            case list() as many:
                found.update(item for item in many if isinstance(item, int))
            case _:
                pass
    if eos and (token_id := tokenizer.token_to_id(eos)) is not None:
        found.add(token_id)
    if not found:
        found = {token_id for text, token_id in control.items() if text in _END_NAMES}
    return frozenset(found)


def _vocabulary(
    tokenizer: tokenizers.Tokenizer, described: JsonObject, control: dict[str, int]
) -> dict[int, bytes]:
    """The bytes of every token, by the way in which the vocabulary spells them."""
    text_of = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
    added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
    is_byte_level = '"ByteLevel"' in json.dumps(
        [described.get("decoder"), described.get("pre_tokenizer")]
    )
    of_char = _byte_level_characters() if is_byte_level else {}
    table: dict[int, bytes] = {}
    for token_id, text in text_of.items():
        if token_id in added:
            table[token_id] = b"" if text in control else added[token_id].encode()
        elif is_byte_level:
            table[token_id] = _byte_level(text, of_char)
        elif match := _BYTE_TOKEN.fullmatch(text):
            table[token_id] = bytes([int(match[1], 16)])
        else:
            table[token_id] = text.replace("▁", " ").encode()
    return table


def _byte_level(text: str, of_char: dict[str, int]) -> bytes:
    try:
        return bytes(of_char[char] for char in text)
    except KeyError:  # a token that is not spelled in bytes
        return text.encode()


def _byte_level_characters() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters, which byte-level vocabularies use."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + number): byte for number, byte in enumerate(others)}
