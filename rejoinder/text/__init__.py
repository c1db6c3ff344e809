"""Token ids ⇄ text ⇄ events, pure: no I/O, no clock, no asyncio, no engine, no wire."""
