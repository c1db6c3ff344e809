"""Weights: unpacked copies are made once, are more exact than the stored ones, and never needed."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rejoinder.engines.llama.model import LlamaModel
from rejoinder.engines.llama.weights import fast_bf16
from tests.engines.llama_engine import PATH

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(not fast_bf16(), reason="this CPU or this build has no fast BF16"),
]

Load = Callable[..., LlamaModel]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Makes models whose copies go to a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[LlamaModel] = []

    def load(**options: bool) -> LlamaModel:
        made.append(LlamaModel(PATH, num_cells=512, num_sequences=2, num_threads=1, **options))
        return made[-1]

    yield load
    for model in made:
        model.close()


def copies(folder: Path) -> list[Path]:
    return [p for p in (folder / "cache").rglob("*") if p.is_file()]


def logits(model: LlamaModel, chunk: int) -> npt.NDArray[np.float32]:
    """Of every token of a text that is read in chunks."""
    ids = model.tokenizer.encode(
        "The river runs past the market, where lanterns hang in winter.", special=False
    )
    rows = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        places = range(start, start + len(part))
        rows.append(model.decode(part, places, [0] * len(part), [True] * len(part)).copy())
    model.remove(0, 0, -1)
    return np.concatenate(rows)


def test_a_copy_is_made_once(load: Load, tmp_path: Path) -> None:
    first = load()
    assert first.unpacked
    (copy,) = copies(tmp_path)
    made = copy.stat().st_mtime_ns
    second = load()
    assert second.unpacked and second.fingerprint == first.fingerprint
    assert copies(tmp_path) == [copy] and copy.stat().st_mtime_ns == made


def test_off_computes_with_what_is_stored(load: Load, tmp_path: Path) -> None:
    stored = load(unpack=False)
    assert not stored.unpacked and not copies(tmp_path)
    assert stored.fingerprint != load().fingerprint


def test_without_a_place_for_a_copy_the_file_is_served(
    load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        model = load()
    assert not model.unpacked and logits(model, 8).shape[1] == model.vocab_size
    assert "are used as stored" in caplog.text


def test_a_broken_copy_is_made_again(load: Load, tmp_path: Path) -> None:
    load()
    (copy,) = copies(tmp_path)
    size = copy.stat().st_size
    copy.unlink()
    copy.write_bytes(b"GGUF, but not really")
    assert load().unpacked
    assert copy.stat().st_size == size


def test_a_copy_that_does_not_load_is_done_without(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(file: Path, copy: Path) -> bool:
        copy.parent.mkdir(parents=True)
        copy.write_bytes(b"GGUF, but not really")
        return True

    monkeypatch.setattr("rejoinder.engines.llama.model.unpack_weights", spoil)
    with caplog.at_level(logging.WARNING):
        model = load()
    assert not model.unpacked and logits(model, 8).shape[1] == model.vocab_size
    assert "are used as stored" in caplog.text


def test_logits_do_not_depend_on_the_batch(load: Load) -> None:
    model = load()
    whole = logits(model, 64)
    for chunk in (1, 2, 3, 7):
        assert np.array_equal(logits(model, chunk), whole), f"in chunks of {chunk}"


def test_both_say_nearly_the_same(load: Load) -> None:
    unpacked, stored = logits(load(), 64), logits(load(unpack=False), 64)
    difference = np.abs(unpacked - stored).mean()
    assert 0 < difference < 0.3 < unpacked.std()
