"""The examples of docs/scale.md are what they are said to be: the configuration is accepted."""

from pathlib import Path

from rejoinder.config import VllmConfig, load

EXAMPLES = Path(__file__).parents[2] / "examples" / "scale"


def test_the_configuration_is_valid() -> None:
    config = load(EXAMPLES / "rejoinder.toml")
    (model,) = config.models
    assert isinstance(model, VllmConfig)
    assert len(model.replicas) == 2
    compose = (EXAMPLES / "compose.yaml").read_text()
    for replica in model.replicas:
        name = replica.removeprefix("http://").removesuffix(":8000")
        assert f"\n  {name}:\n" in compose
