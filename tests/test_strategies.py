"""The generator of event streams draws legal streams only."""

from hypothesis import given
from hypothesis import strategies as st

from rejoinder.events import Event, EventGrammar, collect, replay
from tests import strategies


@given(
    st.booleans().flatmap(
        lambda yes: strategies.event_streams(logprobs=yes, moderated=not yes, custom_tools=yes)
    )
)
def test_event_streams_are_legal_and_collect(events: list[Event]) -> None:
    grammar = EventGrammar()
    for event in events:
        grammar.feed(event)
    completion = collect(events)
    assert collect(replay(completion)) == completion
