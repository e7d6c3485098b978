"""The command line: a short function per command.

Standard output carries what was asked for (text, a table), everything else goes to standard error.
Bad input is one line and exit code 2; after Ctrl-C what was generated stays, and the code is 130.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn, cast

import typer

from suffice import __version__
from suffice.cli_options import BenchFlags, ModelFlags, SamplingFlags, flag, with_flags
from suffice.errors import InputError

# typer has no public name for the class of every usage error.
USAGE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])

app = typer.Typer(
    name="suffice",
    help="Generate text with an LLM on this machine's CPU.",
    epilog="Every long flag can be set in the environment: --top-k as SUFFICE_TOP_K.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if not sys.stdout.isatty() else "rich",
)

System = Annotated[
    str | None, flag("-sys", "--system-prompt", help="What the model is told before anything else.")
]
Raw = Annotated[
    bool,
    flag("--no-chat-template", "--raw", help="Give the model the prompt as it is."),
]


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is no reason to stop.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="suffice", standalone_mode=False)
    except InputError as error:
        code = _complain(str(error))
    except USAGE_ERROR as error:
        code = _complain(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code or 0)


def _complain(message: str) -> int:
    print("suffice: error:", " ".join(message.split()), file=sys.stderr)
    return 2


def _version(wanted: bool) -> None:
    if wanted:
        print(f"suffice {__version__}")
        raise typer.Exit


@app.callback()
def _suffice(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
@with_flags
def run(
    text: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The prompt; - reads standard input.")
    ] = None,
    prompt: Annotated[str | None, flag("-p", "--prompt", help="The same as a flag.")] = None,
    system: System = None,
    raw: Raw = False,
    *,
    model: ModelFlags,
    sampling: SamplingFlags,
) -> None:
    """Answer one prompt."""
    from suffice.cli_output import Answer, busy, one_prompt, wrapped

    given = one_prompt(text, prompt)
    if raw and system is not None:
        raise InputError("--system-prompt needs the chat template, which --raw leaves out")
    params = sampling.params()
    with busy(f"loading {model.model}"):
        llm = model.load(sampling.seed)
    tokens = given if raw else wrapped(llm, given, system)
    Answer(llm).show(llm.stream(tokens, params))


@app.command()
@with_flags
def chat(system: System = None, *, model: ModelFlags, sampling: SamplingFlags) -> None:
    """Talk with the model; /help lists what else can be typed."""
    from suffice.cli_chat import Chat
    from suffice.cli_output import busy

    params = sampling.params()
    with busy(f"loading {model.model}"):
        llm = model.load(sampling.seed)
    if not llm.tokenizer.has_chat_template:
        raise InputError(f"{model.model} has no chat template: use `suffice run`")
    Chat(llm, params, system).talk()


@app.command()
@with_flags
def bench(*, flags: BenchFlags, model: ModelFlags) -> None:
    """Measure prompt and decode speed, without tokenisation and sampling."""
    from suffice import cli_bench

    cli_bench.run(flags, model)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Such as smollm2-135m; `info` lists them.")],
) -> None:
    """Download a model by its short name."""
    from suffice import pull as pulling
    from suffice.cli_output import Bars

    with Bars() as bars:
        path = pulling.pull(name, bars.report)
    model = pulling.MODELS[name]
    print(f"{model.name}: {model.summary}; licence: {model.licence}", file=sys.stderr)
    print(path)


@app.command()
def info(
    model: Annotated[
        str | None, flag("-m", "--model", help="Describe this model instead of the machine.")
    ] = None,
    calibrate: Annotated[
        bool,
        flag("--calibrate", help="Measure the machine; see how many times a cache should grow."),
    ] = False,
) -> None:
    """Show what is here: version, machine, techniques, models."""
    from suffice import cli_info

    if calibrate:
        cli_info.calibrate()
    elif model is not None:
        cli_info.show_model(model)
    else:
        cli_info.show()
