"""The moderator that the configuration names."""

import os
from collections.abc import Callable

from rejoinder.backends import Backend
from rejoinder.config import ConfigError, ModerationConfig
from rejoinder.service.moderation import Moderator
from rejoinder.service.moderation.guard import GuardModerator
from rejoinder.service.moderation.lexicon import LexiconModerator

__all__ = ["configured_moderator"]


def configured_moderator(
    config: ModerationConfig, guard_backend: Callable[[str], Backend]
) -> Moderator:
    """`guard_backend`: the backend of a model id. Raises ConfigError, naming the key."""
    match config.model:
        case "lexicon":
            return LexiconModerator(config.lexicon)
        case "remote":
            # Importing the HTTP client takes a third of a second, which most starts can save.
            from rejoinder.service.moderation.remote import RemoteModerator

            return RemoteModerator(config.url, api_key=os.environ.get(config.api_key_env, ""))
        case "guard":
            if not config.guard:
                raise ConfigError("moderation.guard must name a model of this file")
            return GuardModerator(guard_backend(config.guard), config.guard)
        case other:
            raise ConfigError(
                f"moderation.model: no moderator '{other}'; known: lexicon, remote, guard"
            )
