"""The command line. Heavy imports wait until a command needs them, so that --help is quick.

It must not know: how anything works; every command hands over to the module that does.
"""

import sys
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
    port: Annotated[int | None, typer.Option(help="The port; 0 picks a free one.")] = None,
    allow_open: Annotated[
        bool,
        typer.Option(
            "--allow-open", help="Serve other machines although no API key is configured."
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
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
        with serving.reachable(url, config) as address:
            client = ChatClient(address, model=model or "", api_key=api_key)
            if not model:
                names = client.models()
                if not names:
                    stop(f"{address} lists no model; name one with --model")
                client.model = names[0]
            talk = TerminalChat(client, system=system, console=console)
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


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from rejoinder import __version__

        typer.echo(__version__)
        sys.exit(0)
