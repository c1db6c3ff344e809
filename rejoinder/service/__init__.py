"""What surrounds an event stream: accounts, limits, moderation, metering, storage."""
