"""`suffice calibrate`: runs a model over a text and writes codebooks or thresholds for it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from suffice.cli.eval.options import CALIBRATION_TEXT, DATA_DIR, MOST_WINDOWS
from suffice.cli.flags import REQUIRED, flag
from suffice.cli.options import ModelFlags
from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import counting_bar

if TYPE_CHECKING:
    from suffice.engine.llm import LLM
    from suffice.eval.thresholds import Found

WINDOW, LONG_WINDOW = 1024, 2048  # thresholds need the longer: what they skip grows with context
LEAST_WINDOW = 8  # tokens: thresholds are compared on a quarter
ATTENTION = "certified:bounded=false,values=0.002"
Windows = list[list[int]]


@dataclass(frozen=True)
class CalibrateFlags:
    """The text, budget, windows and output file of `calibrate`."""

    text: str = flag(REQUIRED, "--text", CALIBRATION_TEXT)
    output: Path | None = flag(
        None, "-o --output", "The file (JSON); default: next to the model.", environment=False
    )
    budget: str | None = flag(
        None,
        "--budget",
        f"Calibrate thresholds of --attention (default: {ATTENTION}) by layer and head, "
        "so that perplexity rises by at most this, such as 0.5%; without it: codebooks of exaq "
        "and exaq_km.",
    )
    into_config: bool = flag(
        False,
        "--into-config",
        "Keep the thresholds of --budget in the config.json of the model's folder, which then "
        "carries them; not in a file.",
        environment=False,
    )
    data_dir: str | None = DATA_DIR()
    window: int | None = flag(
        None, "--window", "Tokens per window; default: 1024, or 2048 with --budget."
    )
    limit: int | None = MOST_WINDOWS()


def run(*, flags: CalibrateFlags, model: ModelFlags) -> None:
    """Calibrate and write the file; Ctrl-C leaves an earlier file unchanged.

    If what is there already is of the same model, its other parts are kept.

    Raises:
        InputError: A text, flag or model that cannot be used, or a file that cannot be written.
    """
    budget = None if flags.budget is None else fraction("--budget", flags.budget)
    window = flags.window
    if window is None:
        flags = dataclasses.replace(flags, window=LONG_WINDOW if budget else WINDOW)
    elif budget and window < LEAST_WINDOW:
        raise InputError(f"--window={window}: must be at least {LEAST_WINDOW} with --budget")
    model.check_drafts("calibrate")
    model = _asked(model, budget)
    model.check_audit("calibrate audits by itself")
    from suffice.eval.record import facts
    from suffice.eval.texts import described, load_text

    kept = _kept(flags, model)
    text = load_text(flags.text, flags.data_dir)
    with busy(f"loading {model.model}"):
        llm = model.load(seed=0)
    windows = _windows(llm, text, flags)
    told = {"text": described(flags.text, text, windows), "made": facts("suffice", sys.argv[1:])}
    identity = {
        "name": PurePath(model.model).name,
        "hash": llm.runner.stamp,  # type: ignore[attr-defined]
        "heads": llm.runner.decoder.config.heads,  # type: ignore[attr-defined]
    }
    name = ""
    before = partial(kept.before, identity["hash"])
    before()  # refuses another file before the work
    if budget is None:
        part = _softmax(llm, windows) | told
        stored = before() | {"model": identity, "softmax": part}
        said = _said_of_softmax(windows)
    else:
        names = _found(str(model.options.attention))
        name, part = _thresholds(llm, windows, names, budget)
        stored = before() | {"model": identity}
        stored |= {"attention": stored.get("attention", {}) | {name: part | told}}
        said = _said_of_thresholds(name, part, windows)
    kept.save(stored)
    print(kept.path)
    given = "" if kept.found else f" --calibration {shlex.quote(str(kept.path))}"
    for line in (*said, f"next: suffice {_next(model, budget, name=name)}{given}"):
        print(line, file=sys.stderr)


@dataclass(frozen=True)
class _Kept:
    """Where a calibration is kept: in a file, or `carried` by the model in its config.json.

    `named`: the user gave the path. `found`: runs of the model find it without its path.
    """

    path: Path
    named: bool = False
    found: bool = True
    carried: bool = False

    def before(self, model_hash: str) -> dict[str, Any]:
        """Return the parts of an existing calibration of the same model and schema.

        One that is found with the model is replaced if the model has changed; a file that the user
        named is not.

        Raises:
            InputError: What is there is no calibration, or one of another model, that would be
                lost.
        """
        from suffice.attention.calibration import SCHEMA, parts
        from suffice.checkpoints.carried import carried, stored_in

        if self.carried:
            carried(self.path.parent)
            stored = stored_in(self.path.parent) or {}
        else:
            stored = parts(self.path) if self.path.exists() else {}
        if stored.get("schema") != SCHEMA:
            return {}
        own = stored["model"]
        if own["hash"] == model_hash:
            return dict(stored)
        if self.named:
            raise InputError(
                f"calibration {self.path}: is of {own['name']} with hash {own['hash']}, not of "
                f"this model, which has hash {model_hash}: give another -o, or remove it"
            )
        return {}

    def save(self, stored: dict[str, Any]) -> None:
        """Write a calibration; see `calibration.write` and `carried.carry`."""
        from suffice.attention.calibration import write
        from suffice.checkpoints.carried import carry

        if self.carried:
            carry(self.path.parent, stored)
        else:
            write(self.path, stored)


def _kept(flags: CalibrateFlags, model: ModelFlags) -> _Kept:
    """Return where the flags ask a calibration to be kept.

    Raises:
        InputError: There is no such place, or not for what is calibrated.
    """
    from suffice.attention.calibration import default_path
    from suffice.checkpoints.files import locate

    adapter, output = model.options.merge_adapter, flags.output
    if output is not None and not output.parent.is_dir():
        raise InputError(f"-o {output}: there is no folder {output.parent}")
    if output is None and adapter is not None:
        raise InputError(
            f"--merge-adapter={adapter}: a calibration with it needs a file of its own: give -o; "
            "the one next to the model is of the model alone"
        )
    if not flags.into_config:
        default = default_path(locate(model.model))
        return _Kept(output or default, output is not None, output in (None, default))
    if output is not None:
        raise InputError(f"--into-config contradicts -o {output}: give only one")
    if flags.budget is None:
        raise InputError(
            "--into-config: needs --budget: only thresholds of attention are kept in config.json; "
            "codebooks of softmaxes are large, and stay in a file"
        )
    folder = Path(model.model)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"--into-config: {model.model} must be a folder with a config.json: of a file, or a "
            "hub's repository, leave it out"
        )
    return _Kept(folder / "config.json", carried=True)


def _said_of_softmax(windows: Windows) -> list[str]:
    return [
        f"calibrated on {_counted(windows)}",
        "saved: levels of exaq and exaq_km in 2, 3 and 4 bits, by layer and head",
    ]


def _counted(windows: Windows) -> str:
    return f"{len(windows)} window{'s' * (len(windows) > 1)} of {len(windows[0])} tokens"


def _said_of_thresholds(name: str, part: dict[str, Any], windows: Windows) -> list[str]:
    heads = [each for layer in part["thresholds"] for each in layer]
    error, exact = part["ratio_error"], heads.count(None)
    spread = "" if error is None else f" ± {100 * error:.2f}"
    return [
        f"perplexity {100 * (part['ratio'] - 1):+.2f}{spread} % on {_counted(windows)} "
        f"(budget {100 * part['budget']:g} %), "
        f"{100 * part['bytes']:.0f} % of KV bytes read",
        f"saved: thresholds of {name} for {len(heads) - exact} of {len(heads)} heads"
        + ("; the others stay exact" if exact else ""),
    ]


def _next(model: ModelFlags, budget: float | None, name: str) -> str:
    """Return a command that uses the calibration, without `suffice`."""
    source = f"-m {shlex.quote(model.model)}"
    if model.options.merge_adapter is not None:
        source += f" --merge-adapter {shlex.quote(str(model.options.merge_adapter))}"
    if budget is None:
        return f"eval perplexity {source} --softmax exaq_km:bits=3 --against exact"
    stored = model.cache_dtype()
    types = [] if stored == "auto" else stored.split("/")
    flags: dict[str, Any] = dict(zip(("-ctk", "-ctv"), types, strict=False))
    asked = model.inexact()
    flags |= {flag: asked[flag] for flag in ("--quant", "--experts") if flag in asked}
    given = "".join(f" {flag} {shlex.quote(str(own))}" for flag, own in flags.items())
    return f'run {source} --attention {name}:calibrated{given} "your prompt"'


def fraction(name: str, text: str) -> float:
    """Return a fraction, written as such or in per cent.

    Raises:
        InputError: The text is no fraction, or not above 0 and below 1.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        found = -1.0 if rest else float(number) / (100 if percent else 1)
    except ValueError:
        found = -1.0
    if not 0 < found < 1:
        raise InputError(f"{name}={text}: must be above 0 and below 1, such as 0.5% or 0.005")
    return found


def _asked(model: ModelFlags, budget: float | None) -> ModelFlags:
    """Return the model's flags with the technique to calibrate."""
    from suffice.attention import ATTENTIONS, in_python

    if budget is None:
        return _exact(model)
    asked = model.options
    name = ATTENTION if asked.attention == "exact" else str(asked.attention)
    technique = ATTENTIONS.build(name)
    if technique.calibrated:
        raise InputError(
            f"--attention={name}: --budget finds the thresholds: leave out calibrated, and give "
            "the other options, if any"
        )
    if in_python(technique):
        raise InputError(
            f"--attention={name}: has no native code, which thresholds of each head need: give a "
            f"technique of suffice, such as {ATTENTION}"
        )
    _found(name)
    if technique.unread_in_prompts:
        raise InputError(
            f"--attention={name}: --budget decodes every token, so it does not measure what "
            "prompts leave out: leave out prompt"
        )
    for option, value, allowed in (
        ("--softmax", asked.softmax, "exact"),
        ("--policy", asked.policy, "full"),
    ):
        if value != allowed:
            raise InputError(f"{option}={value}: --budget is for {option} {allowed}")
    return dataclasses.replace(model, options=dataclasses.replace(asked, attention=name))


def _found(name: str) -> tuple[str, ...]:
    """Return the thresholds of a technique that --budget finds for each head: those not given.

    Raises:
        InputError: All are given.
    """
    from suffice.attention import ATTENTIONS
    from suffice.attention.by_head import open_thresholds

    technique = ATTENTIONS.build(name)
    found = open_thresholds(technique, ATTENTIONS.given(name))
    if not technique.ladders:
        raise InputError(f"--attention={name}: has no thresholds that --budget could find")
    if not found:
        all_names = " or ".join(technique.ladders)
        raise InputError(
            f"--attention={name}: --budget finds {all_names} for each head: leave out {all_names}"
        )
    return found


def _exact(model: ModelFlags) -> ModelFlags:
    """Return the flags, which must ask for exact arithmetic only.

    Raises:
        InputError: A flag asks for an approximation, which would be ignored.
    """
    for option, value in model.inexact().items():
        if option != "--speculate":  # refused elsewhere, or makes no drafts
            raise InputError(
                f"{option}={value}: needs --budget: without it, softmaxes are calibrated, on exact "
                "attention and full weights"
            )
    return model.exact()


def _windows(llm: LLM, text: str, flags: CalibrateFlags) -> Windows:
    from suffice.eval.perplexity import PerplexityPlan, windows_of

    assert flags.window is not None
    plan = PerplexityPlan(flags.window, flags.limit)
    return windows_of(llm.tokenizer, text, plan, llm.config.max_model_len or 0)


def _softmax(llm: LLM, windows: Windows) -> dict[str, Any]:
    from suffice.eval.calibrate import Calibrator

    calibrator = Calibrator(llm.runner)  # type: ignore[arg-type]
    layers = len(llm.runner.decoder.config.cached)  # type: ignore[attr-defined]
    fits: list[tuple[dict[str, Any], dict[str, Any]]] = []
    with counting_bar() as bar:
        task = bar.add_task("windows", total=len(windows))
        for done in calibrator.run(windows):
            bar.update(task, completed=done)
        task = bar.add_task("levels", total=layers)
        for fit in calibrator.fit():
            fits.append(fit)
            bar.advance(task)
    return calibrator.softmax(fits)


def _thresholds(
    llm: LLM, windows: Windows, names: tuple[str, ...], budget: float
) -> tuple[str, dict[str, Any]]:
    """Return the technique's name and its part of the calibration."""
    from suffice.attention import ATTENTIONS
    from suffice.eval.thresholds import Allocator

    technique: Any = llm.config.attention
    allocator = Allocator(llm.runner, technique, names, windows)  # type: ignore[arg-type]
    looks, heads, trials = allocator.runs
    found: Found | None = None

    def show(words: str, total: int, steps: Iterator[int]) -> None:
        task = bar.add_task(words, total=total)
        for done in steps:
            bar.update(task, completed=done)

    with counting_bar() as bar:
        show("thresholds", looks, allocator.look())
        show("heads", heads, allocator.weigh())
        task = bar.add_task("windows", total=trials)
        for done, best in allocator.search(budget):
            bar.update(task, completed=done)
            found = best
    assert found is not None
    options = dataclasses.asdict(technique)
    for name in (*names, "calibrated"):
        del options[name]
    return ATTENTIONS.name_of(technique), {"options": options, "budget": budget} | found.plain()
