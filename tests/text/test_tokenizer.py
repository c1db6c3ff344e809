"""Hugging Face tokenizers: exact bytes of every token, and control tokens only from markup."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from rejoinder.errors import InvalidParameter
from rejoinder.text.formats import marker_bytes
from rejoinder.text.tokenizer import HfTokenizer

CORPUS = ["Hello there, what does it mean?", "größe 東京 🙂 <|im_end|> a </s> b"] * 4
TEXTS = ["Hello", " there  é🙂\n", "<|im_end|>", "a<|im_end|>b", "</s>x", "", "ǆ\x00</s>\x00"]


def byte_level(folder: Path) -> Path:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>"])
    return saved(tokenizer, folder, "<|im_end|>")


def sentencepiece_like(folder: Path) -> Path:
    vocabulary = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocabulary += [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    vocabulary += [(char, -5.0) for char in "▁Helothrab<>/s|_imend"]
    vocabulary += [("▁Hello", -2.0), ("▁there", -2.0)]
    unique = list(dict(vocabulary).items())
    tokenizer = tokenizers.Tokenizer(models.Unigram(unique, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    return saved(tokenizer, folder, "</s>")


def saved(tokenizer: tokenizers.Tokenizer, folder: Path, eos: str) -> Path:
    tokenizer.enable_truncation(3)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "chat_template": [
            {"name": "default", "template": "D"},
            {"name": "tool_use", "template": "T"},
        ],
        "eos_token": {"content": eos},
        "bos_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(params=[byte_level, sentencepiece_like], ids=lambda f: f.__name__)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> HfTokenizer:
    return HfTokenizer(request.param(tmp_path))


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_are_the_text(tokenizer: HfTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, special=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert not set(ids) & set(tokenizer.control_tokens.values())


def test_control_tokens_come_from_markup_only(tokenizer: HfTokenizer) -> None:
    end = tokenizer.control_tokens["<|im_end|>"]
    assert end in tokenizer.encode("a<|im_end|>", special=True)
    assert end not in tokenizer.encode("a<|im_end|>", special=False)
    assert tokenizer.token_bytes(end) == b""
    assert tokenizer.files.chat_template == "T"
    assert tokenizer.files.bos_token == ""
    assert tokenizer.end_token_ids == {tokenizer.control_tokens[tokenizer.files.eos_token]}


def test_byte_tokens_are_one_byte(tmp_path: Path) -> None:
    tokenizer = HfTokenizer(sentencepiece_like(tmp_path))
    ids = tokenizer.encode("é", special=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [b"\xc3", b"\xa9"]


def test_a_plain_added_token_has_its_text(tmp_path: Path) -> None:
    tokenizer = HfTokenizer(byte_level(tmp_path))
    (think,) = tokenizer.encode("<think>", special=False)
    assert tokenizer.token_bytes(think) == b"<think>"
    assert "<think>" not in tokenizer.control_tokens


def test_markers_that_are_control_tokens_have_text_for_the_parser(tmp_path: Path) -> None:
    raw = tokenizers.Tokenizer.from_file(str(byte_level(tmp_path) / "tokenizer.json"))
    raw.add_special_tokens(["<tool_call>", "</think>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HfTokenizer(tmp_path)
    control = tokenizer.control_tokens
    token_bytes = marker_bytes(tokenizer, "hermes", "qwen3")
    assert token_bytes(control["<tool_call>"]) == b"<tool_call>"
    assert token_bytes(control["</think>"]) == b"</think>"
    assert token_bytes(control["<|im_start|>"]) == b""
    assert marker_bytes(tokenizer, "none", "none")(control["<tool_call>"]) == b""


def test_ends_are_read_from_the_generation_config(tmp_path: Path) -> None:
    byte_level(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert HfTokenizer(tmp_path / "tokenizer.json").end_token_ids == {0, 2}


def test_errors_are_clear(tokenizer: HfTokenizer, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter):
        tokenizer.token_bytes(10**9)
    with pytest.raises(InvalidParameter):
        tokenizer.token_bytes(-1)
    with pytest.raises(ValueError, match="cannot read"):
        HfTokenizer(tmp_path / "nowhere" / "tokenizer.json")
