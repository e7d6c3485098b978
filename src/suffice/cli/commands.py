"""The commands of the command line: a short function each.

Standard output carries the result (a text, a table); everything else goes to standard error. Bad
input ends with one line and exit code 2. Ctrl-C keeps the text generated so far and ends with 130.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import click

from suffice import __version__
from suffice.cli.adapters import AdapterFlags
from suffice.cli.answer import Answer
from suffice.cli.environment import misspelt
from suffice.cli.flags import REQUIRED, argument, flag
from suffice.cli.foreign import foreign_flags
from suffice.cli.groups import Commands, Program
from suffice.cli.interrupt import INTERRUPTED
from suffice.cli.messages import in_flags, of_usage
from suffice.cli.options import (
    BenchFlags,
    ModelFlags,
    SamplingFlags,
)
from suffice.cli.output import busy, one_prompt, wrapped
from suffice.cli.prefixes import PrefixFlags
from suffice.cli.prompt_cache import FILE, check_file, streaming
from suffice.errors import InputError, OptionError, check_text
from suffice.outside import blamed
from suffice.warned import as_lines


def _version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"suffice {__version__}")
        context.exit()


app = Commands(
    "suffice",
    help="Generate text with an LLM on this machine's CPU.",
    epilog=(
        "Every long flag can be set in the environment: --top-k as SUFFICE_TOP_K. "
        "In the summary of a run, `cache A -> B, read R %`: keys and values take A bytes in the "
        "model's own type and B as stored; decode steps read R % of the bytes that exact attention "
        "to A reads. `up to U % of softmax unread` bounds the attention mass left out, `softmax "
        "off by at most U % on average` the total variation distance to the exact softmax."
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            help="Print the version.",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
        )
    ],
)

SYSTEM = flag(None, "-sys --system-prompt", "Instructions that precede the conversation.")
QUIET = flag(False, "-q --quiet", "Print no summary after an answer.")
THINK = flag(
    "on",
    "--think",
    "A model's thinking: on shows it (on standard error), hide does not, off asks for none.",
)
RAW = flag(False, "--no-chat-template --raw", "Run the prompt as it is, without a chat template.")


def execute(arguments: list[str]) -> int:
    """Run the command line and return its exit code."""
    if sys.stderr is None:  # print would take standard output instead
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the end)
    if sys.stdout is None:
        return _complain("standard output is closed: give it somewhere to go")
    _accept_any_text()
    try:
        return _called(arguments)
    except OptionError as error:
        return _complain(in_flags(error, arguments, app.parameters()))
    except InputError as error:
        return _complain(str(error))
    except click.UsageError as error:
        return _complain(of_usage(error))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        if error.filename is not None:
            raise
        _discard_output()
        return _complain(f"the output cannot be written: {error.strerror or error}")
    except (Exception, SystemExit) as error:
        if (line := blamed(error)) is None:
            raise
        return _complain(line)


def _called(arguments: list[str]) -> int:
    for line in misspelt(app, os.environ):
        print(line, file=sys.stderr)
    code = 0
    with as_lines():
        try:
            with app.make_context("suffice", arguments or ["--help"]) as context:
                app.invoke(context)
        except click.exceptions.Exit as left:
            code = left.exit_code
    sys.stdout.flush()
    return code


def _accept_any_text() -> None:
    # A character that the terminal cannot show must not stop the program. Input that is not text
    # passes here and is refused when the prompt is checked.
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "replace"),
        (sys.stderr, "replace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _discard_output() -> None:
    """Discard unwritten output; else Python would try again when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> int:
    with contextlib.suppress(OSError):
        print("suffice: error:", " ".join(message.split()), file=sys.stderr)
    return 2


def _from_environment(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"


@app.program(more=foreign_flags)
def run(
    context: click.Context,
    text: str | None = argument(None, "The prompt; - reads standard input.", metavar="PROMPT"),
    prompt: str | None = flag(None, "-p --prompt", "The prompt, as a flag."),
    file: Path | None = flag(None, "-f --file", "A text file (UTF-8) that holds the prompt."),
    system: str | None = SYSTEM,
    raw: bool = RAW,
    think: str = THINK,
    quiet: bool = QUIET,
    prompt_cache: Path | None = FILE,
    *,
    model: ModelFlags,
    adapters: AdapterFlags,
    prefixes: PrefixFlags,
    sampling: SamplingFlags,
) -> None:
    """Answer one prompt."""
    from suffice.cli.speaking import Speaker, check

    check(think)
    # The command line wins over the environment, including the variables of other flags.
    if (text is not None or file is not None) and _from_environment(context, "prompt"):
        prompt = None
    if (text is not None or prompt is not None) and _from_environment(context, "file"):
        file = None
    if raw and _from_environment(context, "system"):
        system = None
    given = one_prompt(text, prompt, file)
    check_text("the system prompt", system or "")
    if raw and system is not None:
        raise InputError("--system-prompt needs the chat template, which --raw leaves out")
    params = sampling.params()
    adapter = adapters.only("run")
    check_file(prompt_cache)
    with busy(f"loading {model.model}"):
        llm = prefixes.on(adapters.on(model)).load(sampling.seed)
    speaker = None if raw else Speaker(llm.tokenizer, think)
    text = None if speaker is None else wrapped(llm, given, system, speaker.facts)
    with streaming(llm, prompt_cache, adapter) as stream:
        if speaker is None or text is None:
            Answer(llm, quiet).show(stream(given, params))
            return
        tokens = llm.tokenizer.encode(text, special=False)
        answer = Answer(llm, quiet, speaker.answer(text))
        answer.show(stream(tokens, speaker.params(params)))


@app.program(more=foreign_flags)
def chat(
    system: str | None = SYSTEM,
    think: str = THINK,
    quiet: bool = QUIET,
    *,
    model: ModelFlags,
    adapters: AdapterFlags,
    prefixes: PrefixFlags,
    sampling: SamplingFlags,
) -> None:
    """Talk with the model; /help lists the commands."""
    from suffice.cli.chat import Chat
    from suffice.cli.speaking import check

    check(think)

    check_text("the system prompt", system or "")
    sampling.params()  # refuses bad values before the model is loaded
    adapter = adapters.only("chat")
    with busy(f"loading {model.model}"):
        llm = prefixes.on(adapters.on(model)).load(sampling.seed)
    llm.config.check_session()
    if not llm.tokenizer.has_chat_template:
        raise InputError(f"{model.model} has no chat template: use `suffice run`")
    Chat(llm, sampling, system, quiet, model.model, adapter, think).talk()


@app.program(more=foreign_flags)
def bench(*, flags: BenchFlags, model: ModelFlags, adapters: AdapterFlags) -> None:
    """Measure prompt and decode speed in tokens per second."""
    from suffice.cli import bench as benching

    benching.run(flags, adapters.usual(model, "bench"))


app.add_command(
    Program(
        "bench serve",
        "suffice.cli.bench_serve:run",
        help="Measure a server by OpenAI's API: latency, gaps, throughput, errors.",
    )
)
app.add_command(
    Program(
        "serve",
        "suffice.cli.serve:run",
        help="Serve a model to programs, by OpenAI's API.",
        more=foreign_flags,
    )
)
app.add_command(
    Program(
        "batch",
        "suffice.cli.batch:run",
        help="Answer a file of requests, in OpenAI's batch format.",
        more=foreign_flags,
    )
)
app.add_command(
    Program(
        "plan",
        "suffice.cli.plan:run",
        help="Find how many engines of how many cores hold a load, by simulation.",
    )
)
app.add_command(
    Program(
        "calibrate",
        "suffice.cli.calibrate:run",
        help="Calibrate attention or softmax techniques for a model on a text.",
    )
)
app.add_command(
    Program(
        "quantize",
        "suffice.cli.quantize:run",
        help="Quantize a model to 2 to 8 bits, calibrated on a text.",
    )
)
app.add_command(
    Program(
        "train-drafter",
        "suffice.cli.train_drafter:run",
        help="Train a head that drafts for a model (EAGLE-3), on the model's own answers.",
    )
)


@app.program()
def report(
    results: list[Path] = argument(
        REQUIRED, "Result files (.json), or folders of them.", metavar="RESULTS"
    ),
    output: Path = flag(
        Path("report.html"), "-o --output", "The page (HTML) to write.", environment=False
    ),
) -> None:
    """Write one HTML page of the results of `eval` and `bench`."""
    from suffice.cli import report as reporting

    reporting.run(results, output)


app.add_command(
    Program(
        "pull",
        "suffice.cli.models:pull",
        help="Download a model by its short name, or from the Hugging Face Hub.",
    )
)
app.add_command(Program("list", "suffice.cli.models:listed", help="List the downloaded models."))
app.add_command(Program("rm", "suffice.cli.models:remove", help="Remove a downloaded model."))


@app.program()
def info(
    names: list[str] | None = argument(
        None,
        "A seam (attention, softmax, policy, experts, growth, quant, speculate) lists "
        "its techniques, a technique such as aet its options; without one, the machine.",
        metavar="SEAM|TECHNIQUE",
    ),
    *,
    model: str | None = flag(
        None,
        "-m --model",
        "The model to describe; SUFFICE_MODEL is not read here.",
        environment=False,
    ),
    measure: bool = flag(
        False,
        "--measure",
        "Measure and store the speed of memory and arithmetic, which `--growth bmc` uses.",
    ),
    ctx_size: int | None = flag(
        None,
        "-c --ctx-size",
        "With -m: the tokens of a text whose memory is said; default: 8192, 32768 and 131072.",
        environment=False,
    ),
    memory: str | None = flag(
        None,
        "--memory",
        "With -m: memory of weights, keys and values, such as 16GiB; default: the machine's.",
        metavar="SIZE",
        environment=False,
    ),
) -> None:
    """Describe the machine, a model, a seam or a technique."""
    from suffice.cli import info as showing

    if model is None and (ctx_size is not None or memory is not None):
        raise InputError("info: --ctx-size and --memory are about a model: give -m")
    if names:
        if measure or model is not None:
            raise InputError(f"info {names[0]}: goes with neither -m nor --measure")
        from suffice.cli import techniques

        techniques.show(names)
    elif measure:
        showing.measure()
    elif model is not None:
        showing.show_model(model, ctx_size, memory)
    else:
        showing.show()


app.add_command(
    Commands(
        "cache",
        help="Look through what --prefix-dir keeps of prompts, and remove from it.",
        declared_in="suffice.cli.kept:kept",
    )
)
app.add_command(
    Commands(
        "eval",
        help="Measure the quality and speed of a setting.",
        declared_in="suffice.cli.eval.commands:evaluate",
    )
)
app.add_command(
    Commands(
        "hw",
        help="Simulate the accelerators that the implemented papers propose (Scrooge, KLLM, EXAQ): "
        "memory, cycles, energy and area, compared with the published figures. Generating text "
        "does not use them.",
        short_help="Simulate the papers' accelerators and check them against published figures.",
        declared_in="suffice.cli.hw.commands:hardware",
    )
)
