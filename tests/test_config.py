"""The configuration file: what no start should get as far as trying."""

import pytest

from rejoinder.config import ConfigError, parse

LLAMA = '[[models]]\nid = "m"\nbackend = "llama"\n'
REMOTE = '[[models]]\nid = "m"\nbackend = "remote"\n'
FLEET = '[[models]]\nid = "m"\nbackend = "vllm"\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (LLAMA + "context_length = 4294967296", "context_length"),  # 0, where it is 32 bits wide
        (LLAMA + "context_length = 0", "context_length"),
        (LLAMA + "threads = 513", "threads"),  # the library aborts
        (LLAMA + "max_sequences = 257", "max_sequences"),
        (REMOTE + 'base_url = "ftp://x/v1"', "base_url"),
        (REMOTE + 'base_url = "provider.example/v1"', "base_url"),
        (REMOTE + 'base_url = ""', "base_url"),
        (FLEET + 'replicas = ["http://a:1", "b:1"]', "replicas"),
        (FLEET + "replicas = []", "replicas"),
        (f'[[keys]]\nkey_sha256 = "{"0" * 64}"\naccount = ""', "account"),
        ('[[keys]]\nkey_sha256 = "sk-secret"\naccount = "a"', "key_sha256"),
    ],
)
def test_a_value_that_cannot_work_is_named(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert key in str(caught.value)
    assert "regex" not in str(caught.value)


def test_values_at_the_border_can() -> None:
    parse(LLAMA + "context_length = 2147483647\nthreads = 512\nmax_sequences = 256")
    parse(REMOTE + 'base_url = "http://[::1]:8000/v1"')
    parse(FLEET + 'replicas = ["https://a", "http://127.0.0.1:1"]')
