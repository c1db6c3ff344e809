"""Weights files: where a configured path leads, a hash that names a file, and unpacked copies.

This module must not know: contexts, scheduling, sampling.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import logging
import os
from pathlib import Path

import llama_cpp as llama

from rejoinder.errors import InvalidRequest

__all__ = ["fast_bf16", "find_weights", "hash_weights", "unpack_weights", "unpacked_copy"]

log = logging.getLogger(__name__)

_SAMPLE_BYTES = 4096
_SAMPLE_COUNT = 1024
_HEADER_BYTES = 1 << 20

# ---------------------------------------------------------------- finding and naming


def find_weights(path: str) -> Path:
    """The weights file that a configured path means: "package:module/file", "hf:ORG/REPO:FILE"
    or a file's path. Raises InvalidRequest with a message for whoever wrote the configuration."""
    if path.startswith("package:"):
        return _weights_in_package(path)
    if path.startswith("hf:"):
        return _weights_on_hub(path)
    file = Path(path).expanduser()
    if not file.is_file():
        raise InvalidRequest(f"There is no model file at '{path}'.", param="path")
    return file


def _weights_in_package(path: str) -> Path:
    module, _, name = path.removeprefix("package:").partition("/")
    if not module or not name:
        raise InvalidRequest(f"'{path}' is not of the form 'package:MODULE/FILE'.", param="path")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise InvalidRequest(
            f"The package '{module}' of the model path '{path}' is not installed.", param="path"
        )
    for root in spec.submodule_search_locations or ():
        if (file := Path(root) / name).is_file():
            return file
    raise InvalidRequest(f"The package '{module}' has no file '{name}'.", param="path")


def _weights_on_hub(path: str) -> Path:
    repository, _, name = path.removeprefix("hf:").partition(":")
    if repository.count("/") != 1 or not name:
        raise InvalidRequest(f"'{path}' is not of the form 'hf:ORG/REPO:FILE'.", param="path")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise InvalidRequest(
            f"The model path '{path}' needs the extra 'hf': pip install 'rejoinder[hf]'.",
            param="path",
        ) from None
    try:
        return Path(hf_hub_download(repository, name))
    except Exception as error:
        raise InvalidRequest(
            f"The model '{path}' could not be downloaded: {error}", param="path"
        ) from error


def hash_weights(file: Path) -> bytes:
    """A hash of size, header (metadata, tokenizer, template) and samples spread evenly."""
    digest = hashlib.blake2b(digest_size=16)
    size = file.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with file.open("rb") as handle:
        digest.update(handle.read(_HEADER_BYTES))
        for i in range(_SAMPLE_COUNT):
            handle.seek(size * i // _SAMPLE_COUNT)
            digest.update(handle.read(_SAMPLE_BYTES))
        handle.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(handle.read())
    return digest.digest()


# ---------------------------------------------------------------- unpacking


def fast_bf16() -> bool:
    """Whether products with BF16 weights are fast here and the same for every batch size: the
    CPU has instructions for them, and the library was built without the matrix kernels that
    leave batches of one token out. See docs/decisions/0014-small-models-are-unpacked.md."""
    built = llama.llama_print_system_info()
    return b"AVX512_BF16 = 1" in built and b"LLAMAFILE = 1" not in built


def unpacked_copy(file: Path, digest: bytes) -> Path:
    """Where the unpacked copy of a file with this hash lies, or would lie."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "rejoinder" / "weights" / f"{file.stem}-{digest.hex()[:16]}-bf16.gguf"


def unpack_weights(file: Path, copy: Path) -> bool:
    """Writes the weights of a quantized file as BF16, once for all later starts. False, and a
    line in the log, when that is not possible: the file itself is served then."""
    params = llama.llama_model_quantize_default_params()
    params.ftype = llama.LLAMA_FTYPE_MOSTLY_BF16
    params.allow_requantize = True
    half = copy.with_name(f"{copy.name}.{os.getpid()}")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        code = llama.llama_model_quantize(
            os.fsencode(file), os.fsencode(half), ctypes.byref(params)
        )
        if code != 0:
            raise OSError(f"llama_model_quantize answered {code}")
        half.replace(copy)
    except OSError as error:
        with contextlib.suppress(OSError):
            half.unlink()
        log.warning("the weights of %s are used as stored: %s", file.name, error)
        return False
    return True
