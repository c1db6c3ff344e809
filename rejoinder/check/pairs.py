"""Two answers to the same request, for rules that compare them.

Must not know: particular rules.
"""

from rejoinder.check.exchange import Exchange
from rejoinder.check.probes import SEEDED, SEEDED_AGAIN, UNARY, UNARY_AGAIN
from rejoinder.check.rule import Evidence, Probe, Skipped


def texts(x: Exchange) -> list[tuple[str, str, str, str | None]]:
    """Of each choice the content, the refusal, the reasoning and why it ended."""
    return [(c.content, c.refusal, c.reasoning, c.finish) for c in x.choices]


def calls(x: Exchange) -> list[list[tuple[str, str]]]:
    """Of each choice the names and arguments of its calls; ids differ from answer to answer."""
    return [[(call.name, call.arguments) for call in c.calls] for c in x.choices]


def require_repeatable(e: Evidence) -> None:
    """Raises Skipped unless the server gave the same answer to the same request twice."""
    if texts(e.answer(UNARY.name)) != texts(e.answer(UNARY_AGAIN.name)):
        raise Skipped("the same request with seed and temperature 0 gave two different answers")


def require_seed(e: Evidence) -> None:
    """Raises Skipped unless a seed makes a temperature repeatable."""
    if texts(e.answer(SEEDED.name)) != texts(e.answer(SEEDED_AGAIN.name)):
        raise Skipped("the same seed gave two different answers")


def both(e: Evidence, first: Probe, second: Probe) -> tuple[Exchange, Exchange]:
    """The two answers. Raises Skipped if they cannot be compared."""
    pair = e.answer(first.name), e.answer(second.name)
    require_repeatable(e)
    return pair
