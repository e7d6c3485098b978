"""`suffice train-drafter`: trains a head that drafts for a model, on the model's own answers."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from suffice.cli.eval.options import DATA_DIR
from suffice.cli.flags import REQUIRED, flag
from suffice.cli.options import SourceFlags
from suffice.errors import InputError
from suffice.progress import counted

if TYPE_CHECKING:
    from suffice.train.answers import Answers
    from suffice.train.job import HeadTraining, Measured
    from suffice.train.recipe import Recipe

_EVERY = 100  # updates between measurements


@dataclass(frozen=True)
class TrainFlags:
    """The prompts, the recipe and the output folder of `train-drafter`."""

    output: Path = flag(
        REQUIRED, "-o --output", "The folder to write the head to.", environment=False
    )
    prompts: str | None = flag(
        None,
        "--prompts",
        "A file with a prompt per line (text, or JSON with a field prompt or question), or gsm8k, "
        "spec-bench or speed-bench.",
    )
    own_prompts: int = flag(
        0, "--own-prompts", "How many prompts a chat model makes up itself, after those given."
    )
    data_dir: str | None = DATA_DIR()
    limit: int | None = flag(None, "--limit", "Maximum number of prompts; default: all.")
    length: int | None = flag(
        None,
        "--length",
        "Tokens of a prompt and its answer, at most; default: 512, or the model's context.",
    )
    temp: float = flag(0.0, "--temp", "Temperature of the answers; 0 takes the most likely token.")
    draft_vocab: int = flag(
        8192,
        "--draft-vocab",
        "How many tokens can be drafted, in steps of 16: the most frequent of the answers.",
    )
    steps: int = flag(4, "--steps", "Drafts in a row that the head is trained on, at most.")
    batch: int = flag(4, "--batch", "Answers in an update.")
    rate: float = flag(1e-3, "--rate", "The largest rate of updates.")
    epochs: int = flag(2, "--epochs", "How many times the model runs each answer.")
    passes: int = flag(3, "--passes", "Updates on each answer whenever the model has run it.")
    seed: int = flag(0, "--seed", "Of first weights, orders and drawn answers.")
    raw: bool = flag(
        False, "--no-chat-template --raw", "Run prompts as they are, without a chat template."
    )


def run(*, flags: TrainFlags, model: SourceFlags) -> None:
    """Train and write the folder. After Ctrl-C, the same command continues where it stopped.

    Raises:
        InputError: Prompts, flags or a model that cannot be used, or a folder that cannot be
            written.
    """
    _check(flags)
    try:
        import torch
    except ImportError:
        raise InputError(
            "`suffice train-drafter` needs PyTorch: pip install 'suffice[quantize]'"
        ) from None

    from suffice import native
    from suffice.engine.config import Config
    from suffice.engine.llm import LLM
    from suffice.engine.runner import Runner
    from suffice.eval.prompts import load_prompts, prompt_tokens
    from suffice.quantize.job import alone
    from suffice.train.answers import TOGETHER, Answers
    from suffice.train.job import ANSWERS, HeadTraining
    from suffice.train.own_prompts import opening

    recipe = _recipe(flags)
    given = load_prompts(flags.prompts, flags.data_dir) if flags.prompts else []
    llm = LLM.of(Config.built(replace(model.options, max_num_seqs=TOGETHER)))
    torch.set_num_threads(llm.config.threads or native.cores())
    assert isinstance(llm.runner, Runner)
    length = _length(flags, llm.runner.context)
    asked = [
        prompt_tokens(each, llm.tokenizer, chat=not flags.raw) for each in given[: flags.limit]
    ]
    folder = flags.output.with_name(flags.output.name + ".training")
    answers = Answers(
        llm, asked, folder / ANSWERS, length, flags.temp, flags.seed, flags.own_prompts
    )
    if answers.count < 2:
        raise InputError("1 prompt: at least 2 are needed, one to train on and one to measure")
    own = [flags.own_prompts, opening(llm)] if flags.own_prompts else []
    text = json.dumps([asked, own, length, flags.temp])
    facts = {
        "model": PurePath(model.model).name,
        "stamp": llm.runner.stamp,
        "prompts": hashlib.sha256(text.encode()).hexdigest(),
    }
    try:
        with alone(folder, flags.output):
            training = HeadTraining(llm.runner, answers, recipe, flags.output, facts)
            _answer(answers)
            _train(training)
            dtype = "bfloat16" if llm.config.dtype == "bfloat16" else "float32"
            training.write(dtype)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on with what is left", file=sys.stderr)
        raise
    training.clear()
    print(flags.output)


def _recipe(flags: TrainFlags) -> Recipe:
    from suffice.train.recipe import Recipe

    return Recipe(
        flags.draft_vocab,
        flags.steps,
        batch=flags.batch,
        rate=flags.rate,
        epochs=flags.epochs,
        passes=flags.passes,
        seed=flags.seed,
    )


def _length(flags: TrainFlags, context: int) -> int:
    length = min(512, context) if flags.length is None else flags.length
    if not 16 <= length <= context:
        raise InputError(f"--length {length}: must be from 16 to {context}, the model's context")
    if length < flags.steps + 2:
        raise InputError(
            f"--steps {flags.steps}: must be at most {length - 2}, two less than --length"
        )
    return length


def _check(flags: TrainFlags) -> None:
    if flags.output.exists() and (not flags.output.is_dir() or any(flags.output.iterdir())):
        raise InputError(f"-o {flags.output}: must be a new folder, or an empty one")
    if not flags.output.absolute().parent.is_dir():
        raise InputError(f"-o {flags.output}: must be in a folder that is there")
    if flags.own_prompts < 0:
        raise InputError(f"--own-prompts {flags.own_prompts}: must be at least 0")
    if flags.prompts is None and flags.own_prompts < 2:
        raise InputError("give --prompts, or --own-prompts of at least 2")
    if flags.raw and flags.own_prompts:
        raise InputError("--own-prompts are made up by the chat template: leave out --raw")
    if flags.limit is not None and flags.prompts is None:
        raise InputError("--limit is of --prompts, which are not given")
    if flags.limit is not None and flags.limit < 2:
        raise InputError(f"--limit {flags.limit}: must be at least 2")
    if not 0 <= flags.temp < float("inf"):
        raise InputError(f"--temp {flags.temp}: must be 0 or more")


def _answer(answers: Answers) -> None:
    steps = answers.run()
    before = next(steps)
    for _ in counted("prompts answered", answers.count, steps, before, lambda answered: answered):
        pass


def _train(training: HeadTraining) -> None:
    total = training.begin()
    before, others = training.done, training.others_from
    if before < others < total:
        print(f"drafts after the first are trained from update {others + 1} on", file=sys.stderr)
    for step in counted("updates", total, training.run(_EVERY), before):
        if step.held_out is not None:
            what = f"update {step.done}: loss {step.loss:.3f}; held out"
            print(_line(what, step.held_out), file=sys.stderr)
    print(_line("texts it was trained on", training.measure(training=True)), file=sys.stderr)


def _line(what: str, found: Measured) -> str:
    rates = ", ".join(f"{rate:.1%}" for rate in found.rates)
    return f"{what}: drafts accepted by depth {rates}; {found.tokens_per_step:.2f} tokens a step"
