"""The bodies of the other endpoints: decoded values, and errors that name the parameter."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.dialects.bodies import (
    DetokenizeBody,
    EmbeddingsBody,
    MetadataUpdate,
    ModerationBody,
    TokenizeBody,
    decode_detokenize,
    decode_embeddings,
    decode_metadata_update,
    decode_moderation,
    decode_tokenize,
)
from rejoinder.errors import ChatError
from rejoinder.types import ImagePart, TextPart

Decoder = Callable[..., Any]

TYPE, MISSING, UNKNOWN = "invalid_type", "missing_required_parameter", "unknown_parameter"
DECODERS: list[Decoder] = [
    decode_detokenize,
    decode_embeddings,
    decode_metadata_update,
    decode_moderation,
    decode_tokenize,
]
TEXT = {"type": "text", "text": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "u"}}

GOOD: list[tuple[Decoder, Any, Any]] = [
    (decode_metadata_update, {"metadata": None}, MetadataUpdate()),
    (decode_metadata_update, {"metadata": {"a": "b"}}, MetadataUpdate((("a", "b"),))),
    (decode_moderation, {"input": "a"}, ModerationBody(("a",))),
    (decode_moderation, {"input": ["a", ""], "model": None}, ModerationBody(("a", ""))),
    (
        decode_moderation,
        {"input": [TEXT, IMAGE], "model": "x"},
        ModerationBody(((TextPart("a"), ImagePart("u")),), "x"),
    ),
    (decode_embeddings, {"model": "m", "input": "a"}, EmbeddingsBody(model="m", input=("a",))),
    (
        decode_embeddings,
        {"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 1},
        EmbeddingsBody(model="m", input=("a", "b"), encoding_format="base64", dimensions=1),
    ),
    (
        decode_embeddings,
        {"model": "m", "input": [1, 2], "user": "u"},
        EmbeddingsBody(model="m", input=((1, 2),), user="u"),
    ),
    (
        decode_embeddings,
        {"model": "m", "input": [[1], [2, 3]]},
        EmbeddingsBody(model="m", input=((1,), (2, 3))),
    ),
    (decode_tokenize, {"prompt": ""}, TokenizeBody(prompt="")),
    (
        decode_tokenize,
        {"content": "a", "special": True, "model": "m", "add_special_tokens": False},
        TokenizeBody(prompt="a", special=True, model="m"),
    ),
    (decode_detokenize, {"tokens": [0, 5], "model": "m"}, DetokenizeBody(tokens=(0, 5), model="m")),
]


@pytest.mark.parametrize(("decoder", "body", "decoded"), GOOD)
def test_good_bodies(decoder: Decoder, body: Any, decoded: Any) -> None:
    for dialect in ("openai", "deepinfra"):
        assert decoder(json.dumps(body).encode(), dialect) == decoded


BAD: list[tuple[Decoder, Any, str | None, str | None]] = [
    (decode_metadata_update, {}, "metadata", MISSING),
    (decode_metadata_update, {"metadata": {"a": 1}}, "metadata.a", TYPE),
    (decode_metadata_update, {"metadata": {}, "x": 1}, "x", UNKNOWN),
    (decode_moderation, {}, "input", MISSING),
    (decode_moderation, {"input": None}, "input", TYPE),
    (decode_moderation, {"input": []}, "input", "empty_array"),
    (decode_moderation, {"input": ["a", 1]}, "input[1]", TYPE),
    (decode_moderation, {"input": ["a", TEXT]}, "input[0]", TYPE),
    (decode_moderation, {"input": [{"type": "video"}]}, "input[0].type", "invalid_value"),
    (decode_moderation, {"input": [{"type": "image_url"}]}, "input[0].image_url", MISSING),
    (decode_embeddings, {"model": "m"}, "input", MISSING),
    (decode_embeddings, {"input": "a"}, "model", MISSING),
    (decode_embeddings, {"model": "m", "input": ""}, "input", "empty_string"),
    (decode_embeddings, {"model": "m", "input": []}, "input", "empty_array"),
    (decode_embeddings, {"model": "m", "input": [[]]}, "input[0]", "empty_array"),
    (decode_embeddings, {"model": "m", "input": ["a", 1]}, "input[1]", TYPE),
    (decode_embeddings, {"model": "m", "input": [1, "a"]}, "input[1]", TYPE),
    (decode_embeddings, {"model": "m", "input": [True]}, "input[0]", TYPE),
    (decode_embeddings, {"model": "m", "input": ["a"] * 2049}, "input", "array_above_max_length"),
    (decode_embeddings, {"model": "m", "input": "a", "x": 1}, "x", UNKNOWN),
    (
        decode_embeddings,
        {"model": "m", "input": "a", "dimensions": 0},
        "dimensions",
        "integer_below_min_value",
    ),
    (
        decode_embeddings,
        {"model": "m", "input": "a", "encoding_format": "int8"},
        "encoding_format",
        "invalid_value",
    ),
    (decode_tokenize, {}, "prompt", MISSING),
    (decode_tokenize, {"prompt": 1}, "prompt", TYPE),
    (decode_detokenize, {}, "tokens", MISSING),
    (decode_detokenize, {"tokens": [-1]}, "tokens[0]", "integer_below_min_value"),
    (decode_detokenize, {"tokens": [2**40]}, "tokens[0]", "integer_above_max_value"),
]


@pytest.mark.parametrize(("decoder", "body", "param", "code"), BAD)
def test_bad_bodies(decoder: Decoder, body: Any, param: str | None, code: str | None) -> None:
    with pytest.raises(ChatError) as caught:
        decoder(json.dumps(body).encode(), "openai")
    assert (caught.value.param, caught.value.code) == (param, code)


def test_paths_are_spelled_as_the_dialect_does() -> None:
    with pytest.raises(ChatError) as caught:
        decode_detokenize(b'{"tokens":[-1]}', "deepinfra")
    assert caught.value.param == "tokens.0"


@given(
    st.sampled_from(DECODERS),
    st.binary(max_size=30)
    | st.dictionaries(
        st.sampled_from(["input", "model", "metadata", "prompt", "tokens"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=3), lambda i: st.lists(i, max_size=2)
        ),
    ).map(lambda body: json.dumps(body).encode()),
)
def test_any_bytes_give_a_body_or_a_chat_error(decoder: Decoder, body: bytes) -> None:
    try:
        decoder(body, "openai")
    except ChatError as error:
        assert error.status == 400
