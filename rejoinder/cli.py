"""The command line. Heavy imports wait until a command needs them, so that --help is quick.

It must not know: how anything works; every command hands over to the module that does.
"""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    name="rejoinder",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A Chat Completions service to the letter of two published dialects.",
)

MAX_RATE = 2**31 - 1
"""What a column of every database holds."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The TOML file. Default: rejoinder.toml, if there is one."),
]


def main() -> None:
    """The entry point `rejoinder`."""
    app()


def stop(message: str) -> NoReturn:
    """Ends the command with an error that a person can act on."""
    typer.secho(f"rejoinder: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(1)


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")
    ] = None,
    allow_open: Annotated[
        bool,
        typer.Option(
            "--allow-open", help="Serve other machines although no API key is configured."
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, help="Processes on the port, for models served elsewhere."),
    ] = 1,
) -> None:
    """Serve chat completions; without a file, an embedded small model on 127.0.0.1:8000."""
    from rejoinder import serving

    try:
        serving.serve(
            serving.load_config(config),
            host=host,
            port=port,
            open_to_all=allow_open,
            verbose=verbose,
            num_workers=workers,
        )
    except serving.CannotServe as error:
        stop(str(error))


@app.command()
def chat(
    url: Annotated[
        str | None, typer.Argument(help="A server. Default: the embedded model.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="A model of it.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="REJOINDER_API_KEY")] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Ask once and end.")] = None,
    config: ConfigOption = None,
) -> None:
    """Talk to a model in the terminal."""
    from rich.console import Console

    from rejoinder import serving
    from rejoinder.terminal import ChatClient, ChatError, TerminalChat

    console = Console()
    try:
        with serving.reachable(url, config, api_key) as (address, key):
            client = ChatClient(address, model=model or "", api_key=key)
            if not model:
                names = client.models()
                if not names:
                    stop(f"{address} lists no model; name one with --model")
                client.model = names[0]
            # Small models ramble at the API's default; `/set temperature 1` brings it back.
            own = {"temperature": 0.3} if url is None else {}
            talk = TerminalChat(client, system=system, console=console, parameters=own)
            if prompt is not None:
                talk.say(prompt)
            else:
                talk.run()
    except (serving.CannotServe, ChatError) as error:
        stop(str(error))


@app.command()
def models(
    url: Annotated[str | None, typer.Argument(help="A server to ask.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="REJOINDER_API_KEY")] = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """List the models of a configuration, or of a running server."""
    from rejoinder import serving
    from rejoinder.terminal import ChatClient, ChatError

    try:
        if url is not None:
            for name in ChatClient(url, model="", api_key=api_key).models():
                typer.echo(name)
            return
        serving.print_models(serving.load_config(config), as_json=as_json)
    except (serving.CannotServe, ChatError) as error:
        stop(str(error))


@app.command()
def check(
    url: Annotated[str, typer.Argument(help="The server, e.g. http://127.0.0.1:8000/v1.")] = "",
    model: Annotated[str, typer.Option("--model", "-m", help="The model to ask for.")] = "",
    api_key: Annotated[str, typer.Option(envvar="REJOINDER_API_KEY")] = "",
    dialect: Annotated[str, typer.Option(help="openai, deepinfra or auto.")] = "auto",
    only: Annotated[str, typer.Option(help="Rules and sections, e.g. R95,tools.")] = "",
    report: Annotated[str, typer.Option(help="text, json, junit or html.")] = "text",
    output: Annotated[str, typer.Option("--output", "-o", help="A file for the report.")] = "",
    strict: Annotated[
        bool, typer.Option("--strict", help="To the letter of the vendors' pages.")
    ] = False,
    warnings: Annotated[
        bool, typer.Option("--fail-on-warning", help="Warnings fail the check too.")
    ] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one request.")] = 120.0,
    load: Annotated[
        int, typer.Option(min=0, help="Requests made all at once at the end (R216-R218).")
    ] = 0,
    file: Annotated[str, typer.Option(help="A recorded stream instead of a server.")] = "",
    request: Annotated[str, typer.Option(help="The request JSON of --file.")] = "",
) -> None:
    """Grade a chat-completions server, or a recorded stream, against the contract."""
    from rejoinder.check.main import CheckOptions, main_check

    choose("--dialect", dialect, ("auto", "openai", "deepinfra"))
    choose("--report", report, ("text", "json", "junit", "html"))
    options = CheckOptions(
        url=url,
        model=model,
        api_key=api_key,
        dialect=dialect,  # type: ignore[arg-type]
        only=tuple(word for word in only.split(",") if word),
        report=report,  # type: ignore[arg-type]
        output=output,
        mode="strict" if strict else "live",
        fail_on="warning" if warnings else "error",
        concurrency=concurrency,
        timeout_seconds=timeout,
        load=load,
        file=file,
        request=request,
    )
    raise typer.Exit(main_check(options))


@app.command()
def record(
    url: Annotated[str, typer.Argument(help="The server whose exchanges are recorded.")],
    output: Annotated[str, typer.Option("--output", "-o", help="The tape to add to.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
) -> None:
    """Stand before a server and record exchanges with their timing; secrets are redacted."""
    from rejoinder.check.main import RecordOptions, main_record

    options = RecordOptions(url=url, output=output, host=host, port=port)
    raise typer.Exit(main_record(options))


@app.command()
def replay(
    file: Annotated[str, typer.Argument(help="A tape of `rejoinder record`.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    speed: Annotated[float, typer.Option(min=0, help="2: twice as fast; 0: without delays.")] = 1.0,
) -> None:
    """Play a tape back to clients, byte for byte and at its own pace."""
    from rejoinder.check.main import ReplayOptions, main_replay

    raise typer.Exit(main_replay(ReplayOptions(file=file, host=host, port=port, speed=speed)))


def choose(option: str, value: str, known: tuple[str, ...]) -> None:
    """Ends the command when an option has a value that it cannot have."""
    if value not in known:
        import difflib

        near = difflib.get_close_matches(value, known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        stop(f"{option} is one of {', '.join(known)}, not '{value}'{hint}")


# ---------------------------------------------------------------- keys and usage

keys = typer.Typer(no_args_is_help=True, help="API keys in the database.")
app.add_typer(keys, name="keys")


@keys.command("create")
def create_key(
    account: Annotated[str, typer.Option(help="Who pays.")],
    name: Annotated[str, typer.Option(help="A note for people.")] = "",
    tier: Annotated[
        list[str] | None, typer.Option(help="A tier it may use; may be repeated. Default: all.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model it may use; may be repeated. Default: all.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, max=MAX_RATE, help="Default: no limit.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, max=MAX_RATE, help="Default: no limit.")
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(min=0, max=1e9, help="US dollars. Default: no budget.")
    ] = None,
    budget_period: Annotated[str, typer.Option(help="day, month or total.")] = "total",
    expires_in_days: Annotated[
        float | None, typer.Option(min=0, max=36_500, help="Default: never.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May see the dashboard.")] = False,
    config: ConfigOption = None,
) -> None:
    """Make a key. It is shown once and stored hashed."""
    import math
    import time
    from decimal import Decimal

    from rejoinder import admin as database
    from rejoinder import serving
    from rejoinder.service.accounts import ALL_TIERS
    from rejoinder.service.keys import NewKey

    for one in tier or ():
        choose("--tier", one, ALL_TIERS)
    choose("--budget-period", budget_period, ("day", "month", "total"))
    if not account or not account.isprintable():
        stop("--account is a name of printable characters")
    for option, number in (("--budget-usd", budget_usd), ("--expires-in-days", expires_in_days)):
        if number is not None and math.isnan(number):  # which is in every range
            stop(f"{option} is a number, not '{number}'")
    new = NewKey(
        account=account,
        name=name,
        tiers=tuple(tier) if tier else ALL_TIERS,  # type: ignore[arg-type]
        models=tuple(model or ()),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        budget_usd=None if budget_usd is None else Decimal(repr(budget_usd)),
        budget_period=budget_period,  # type: ignore[arg-type]
        admin=admin,
        expires_at=None if expires_in_days is None else time.time() + expires_in_days * 86_400,
    )
    try:
        database.create_key(serving.load_config(config), new)
    except serving.CannotServe as error:
        stop(str(error))


@keys.command("list")
def list_keys(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """List the keys that were made, without the keys themselves."""
    from rejoinder import admin as database
    from rejoinder import serving

    try:
        database.list_keys(serving.load_config(config), as_json=as_json)
    except serving.CannotServe as error:
        stop(str(error))


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The id that `keys list` shows.")],
    config: ConfigOption = None,
) -> None:
    """Revoke a key; running servers notice within seconds."""
    from rejoinder import admin as database
    from rejoinder import serving

    try:
        database.revoke_key(serving.load_config(config), key_id)
    except serving.CannotServe as error:
        stop(str(error))


@app.command()
def usage(
    by: Annotated[
        str, typer.Option(help="account, key_id, model, day, tier, status; with commas.")
    ] = "account,model",
    since: Annotated[datetime | None, typer.Option(help="From this time on (UTC).")] = None,
    until: Annotated[datetime | None, typer.Option(help="Before this time (UTC).")] = None,
    account: Annotated[str | None, typer.Option(help="Only this account.")] = None,
    format: Annotated[str, typer.Option(help="table, csv or json.")] = "table",
    config: ConfigOption = None,
) -> None:
    """Report tokens and cost from the ledger."""
    from rejoinder import admin as database
    from rejoinder import serving

    groups = tuple(word.strip() for word in by.split(",") if word.strip())
    for group in groups:
        choose("--by", group, database.GROUPS)
    choose("--format", format, ("table", "csv", "json"))
    try:
        database.print_usage(
            serving.load_config(config),
            group_by=groups,  # type: ignore[arg-type]
            since=since,
            until=until,
            account=account,
            format=format,  # type: ignore[arg-type]
        )
    except serving.CannotServe as error:
        stop(str(error))


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from rejoinder import __version__

        typer.echo(__version__)
        sys.exit(0)
