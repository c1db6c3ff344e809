"""Runs migrations on the connection that `database` hands over; never opens one of its own."""

from alembic import context

from rejoinder.service.database import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
