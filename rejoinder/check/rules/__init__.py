"""The rules, as data plus one predicate each: one file a section of the contract.

`RULES` is all of them, `GROUPS` the sections in order. Must not know: sockets, reports.
"""

from typing import Final

from rejoinder.check.rule import Rule, rules_of
from rejoinder.check.rules import (
    arithmetic,
    body,
    chunks,
    determinism,
    errors,
    framing,
    logprobs,
    moderation,
    requests,
    tools,
    usage,
)

__all__ = ["BY_ID", "GROUPS", "RULES"]

GROUPS: Final[dict[str, tuple[Rule, ...]]] = {
    name: rules_of(module, name)
    for name, module in {
        "framing": framing,
        "requests": requests,
        "body": body,
        "chunks": chunks,
        "usage": usage,
        "tools": tools,
        "logprobs": logprobs,
        "arithmetic": arithmetic,
        "moderation": moderation,
        "errors": errors,
        "determinism": determinism,
    }.items()
}

RULES: Final[tuple[Rule, ...]] = tuple(rule for rules in GROUPS.values() for rule in rules)

BY_ID: Final[dict[str, Rule]] = {rule.id: rule for rule in RULES}
