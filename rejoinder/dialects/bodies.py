"""The bodies of the other endpoints' requests (contract, section 6), decoded like a chat request.

This module must not know: HTTP, which models there are.
"""

from functools import cache
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from rejoinder.dialects.dialect import DialectName
from rejoinder.dialects.json_body import parse_object
from rejoinder.dialects.messages import nonempty
from rejoinder.dialects.parameters import metadata
from rejoinder.dialects.profile import Profile
from rejoinder.dialects.shapes import (
    Ignored,
    Shape,
    anything,
    array,
    boolean,
    either,
    fields,
    integer,
    nullable,
    one_of,
    tagged,
    text,
)
from rejoinder.dialects.violation import (
    Violation,
    array_too_long,
    empty_array,
    missing,
    wrong_type,
)
from rejoinder.types import ContentPart, ImagePart, Json, TextPart

MAX_EMBEDDING_INPUTS = 2048
_MAX_TOKEN_ID = 2**31 - 1

DEFAULT_MODERATION_MODEL = "omni-moderation-latest"


class MetadataUpdate(Struct, frozen=True):
    """New metadata of a stored completion; None removes it (R222)."""

    metadata: tuple[tuple[str, str], ...] | None = None


class ModerationBody(Struct, frozen=True):
    """`input`: one item a result; an item is a text, or parts that are scored together."""

    input: tuple[str | tuple[ContentPart, ...], ...]
    model: str = DEFAULT_MODERATION_MODEL


EmbeddingInput: TypeAlias = str | tuple[int, ...]


class EmbeddingsBody(Struct, frozen=True, kw_only=True):
    """`input`: texts, or token ids, one embedding each."""

    model: str
    input: tuple[EmbeddingInput, ...]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """`prompt`, also called `content`. `special`: control tokens in it are ids, not text."""

    prompt: str
    model: str | None = None
    special: bool = False


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    tokens: tuple[int, ...]
    model: str | None = None


def decode_metadata_update(body: bytes, dialect: DialectName) -> MetadataUpdate:
    update: MetadataUpdate = _decode(_metadata_update, body, dialect)
    return update


def decode_moderation(body: bytes, dialect: DialectName) -> ModerationBody:
    moderation: ModerationBody = _decode(_moderation, body, dialect)
    return moderation


def decode_embeddings(body: bytes, dialect: DialectName) -> EmbeddingsBody:
    embeddings: EmbeddingsBody = _decode(_embeddings, body, dialect)
    return embeddings


def decode_tokenize(body: bytes, dialect: DialectName) -> TokenizeBody:
    tokenize: TokenizeBody = _decode(_tokenize, body, dialect)
    return tokenize


def decode_detokenize(body: bytes, dialect: DialectName) -> DetokenizeBody:
    detokenize: DetokenizeBody = _decode(_detokenize, body, dialect)
    return detokenize


def _decode(shape_of: Any, body: bytes, dialect: DialectName) -> Any:
    """Raises a ChatError that names the parameter."""
    profile = Profile(dialect)
    try:
        return shape_of(profile)(parse_object(body), [])
    except Violation as violation:
        raise violation.chat_error(profile.spell) from None


@cache
def _metadata_update(profile: Profile) -> Shape:
    rows = {"metadata": nullable(metadata)}
    return fields(MetadataUpdate, rows, required=("metadata",), lenient=profile.lenient)


@cache
def _moderation(profile: Profile) -> Shape:
    url = fields(lambda url: url, {"url": nonempty}, required=("url",), lenient=profile.lenient)
    parts = {
        "text": fields(
            TextPart,
            {"type": anything, "text": text},
            required=("text",),
            lenient=profile.lenient,
        ),
        "image_url": fields(
            lambda image_url: ImagePart(image_url),
            {"type": anything, "image_url": url},
            required=("image_url",),
            lenient=profile.lenient,
        ),
    }
    texts = array(text, empty_allowed=False)
    together = array(tagged("type", parts), empty_allowed=False)

    def several(value: Json, ignored: Ignored) -> tuple[Any, ...]:
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            return (together(value, ignored),)
        items: tuple[Any, ...] = texts(value, ignored)
        return items

    given = either(
        {str: lambda value, ignored: (value,), list: several},
        "a string, an array of strings or an array of content parts",
    )
    return fields(
        ModerationBody,
        {"input": given, "model": nullable(nonempty)},
        required=("input",),
        lenient=profile.lenient,
    )


def _embedding_input(value: Json, ignored: Ignored) -> tuple[EmbeddingInput, ...]:
    """A text, texts, token ids, or lists of token ids."""
    if isinstance(value, str):
        return (nonempty(value, ignored),)
    if not isinstance(value, list):
        raise wrong_type("a string or an array", value)
    if not value:
        raise empty_array()
    ids = array(integer(0, _MAX_TOKEN_ID), empty_allowed=False)
    if type(value[0]) is int:
        return (ids(value, ignored),)
    if len(value) > MAX_EMBEDDING_INPUTS:
        raise array_too_long(MAX_EMBEDDING_INPUTS, len(value))
    one = nonempty if isinstance(value[0], str) else ids
    inputs: tuple[EmbeddingInput, ...] = array(one)(value, ignored)
    return inputs


@cache
def _embeddings(profile: Profile) -> Shape:
    return fields(
        EmbeddingsBody,
        {
            "model": nonempty,
            "input": _embedding_input,
            "encoding_format": one_of("float", "base64"),
            "dimensions": integer(1, 2**31 - 1),
            "user": text,
        },
        required=("model", "input"),
        lenient=profile.lenient,
    )


@cache
def _tokenize(profile: Profile) -> Shape:
    def make(prompt: str | None = None, content: str | None = None, **found: Any) -> TokenizeBody:
        given = prompt if prompt is not None else content
        if given is None:
            raise missing("prompt")
        return TokenizeBody(prompt=given, **found)

    rows = {"prompt": text, "content": text, "model": nullable(nonempty), "special": boolean}
    return fields(make, rows, lenient=True)


@cache
def _detokenize(profile: Profile) -> Shape:
    rows = {"tokens": array(integer(0, _MAX_TOKEN_ID)), "model": nullable(nonempty)}
    return fields(DetokenizeBody, rows, required=("tokens",), lenient=True)
