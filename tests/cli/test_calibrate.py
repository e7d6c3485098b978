"""`suffice calibrate` on a tiny model, and what runs with what it wrote.

Also tests thresholds.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import adapters
import tiny
from calibrating import ASKED, TEXT, text_flags
from commands import Cli
from suffice import LLM
from suffice.attention import ATTENTIONS
from suffice.attention.by_head import open_thresholds
from suffice.attention.calibration import read
from suffice.attention.exaq import EXAQ
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.eval.calibrate import Calibrator
from suffice.eval.thresholds import Allocator


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.shallow(tmp_path / "model")


_found: list[str] = []  # which each test may change a copy of


@pytest.fixture
def calibrated(cli: Cli, model: Path, tmp_path: Path) -> Path:
    path, flags = tmp_path / "found.json", text_flags(tmp_path, 3)
    if _found:
        path.write_text(_found[0])
        return path
    ran = cli("calibrate", "-m", str(model), *flags, "-o", str(path))
    assert (ran.code, ran.out.strip()) == (0, str(path)), ran.err
    _found.append(path.read_text())
    return path


def test_a_calibration_says_what_it_is_of(calibrated: Path, model: Path) -> None:
    stored = json.loads(calibrated.read_text())
    assert (stored["schema"], stored["model"]["name"]) == (2, "model")
    assert [stored["softmax"]["text"][of] for of in ("windows", "window")] == [3, 40]
    found = read(calibrated)
    assert all(layer.sigma > 0 > layer.least for layer in found.layers)
    levels = found.codebooks[2][0][0]
    assert 0 <= levels.weights[0] < levels.weights[-1] and levels.borders[-1] < 0


def test_softmaxes_run_with_it(calibrated: Path, model: Path) -> None:
    """Decoding differs from the exact softmax, and a prompt only if it is asked to."""
    texts = {}
    settings = "exaq:bits=2", "exaq:bits=2,prefill=true", "exaq:3,clip=fit", "exaq_km:bits=4"
    for softmax in ("exact", *settings):
        given = None if softmax == "exact" else calibrated
        llm = LLM(str(model), softmax=softmax, calibration=given, dtype="float32")
        (output,) = llm.generate(TEXT[:60], ASKED, use_tqdm=False)
        texts[softmax] = list(output.outputs[0].token_ids)
        whole = llm.runner.trace.value_fraction == 1  # type: ignore[attr-defined]
        assert whole == (softmax == "exact")
    assert all(len(tokens) == 12 for tokens in texts.values())


def test_the_levels_of_a_run_are_those_of_its_calibration(calibrated: Path, model: Path) -> None:
    """What the calibrator saw again has the sigma that it wrote."""
    stored = json.loads(calibrated.read_text())["softmax"]["layers"]
    llm = LLM(str(model), dtype="auto")
    calibrator = Calibrator(llm.runner)  # type: ignore[arg-type]
    tokens = llm.tokenizer.encode(TEXT)
    assert [*calibrator.run([tokens[:40]])] == [1]
    (layer, *_) = calibrator.softmax([])["layers"]
    assert layer["sigma"] == pytest.approx(stored[0]["sigma"], rel=0.5)
    assert EXAQ(2).layer_levels(**layer).weights[-1] == 1


def test_thresholds_keep_to_the_budget(cli: Cli, model: Path, calibrated: Path) -> None:
    """What the search measured is what an evaluation with its file measures."""
    text = calibrated.with_name("text.txt")
    asked = ["-m", str(model), "--text", str(text), "--window", "120", "--limit", "3"]
    before = json.loads(calibrated.read_text())["softmax"]
    technique = "aet:values=0.01,globals=0,locals=1"
    budget = ["--budget", "20%", "--attention", technique, "-o", str(calibrated)]
    ran = cli("calibrate", *asked, *budget)
    assert (ran.code, ran.out.strip()) == (0, str(calibrated)), ran.err
    loss, saved, following = ran.err.splitlines()
    assert re.fullmatch(
        r"perplexity [+-][\d.]+( ± [\d.]+)? % on 3 windows of 120 tokens \(budget 20 %\), "
        r"\d+ % of KV bytes read",
        loss,
    )
    assert re.fullmatch(r"saved: thresholds of aet for \d of 4 heads(; the others .*)?", saved)
    assert following == (
        f'next: suffice run -m {model} --attention aet:calibrated "your prompt" '
        f"--calibration {calibrated}"
    )
    stored = json.loads(calibrated.read_text())
    assert stored["softmax"] == before
    part = stored["attention"]["aet"]
    assert part["options"]["values"] == 0.01 and "keys" not in part["options"]
    assert [len(layer) for layer in part["thresholds"]] == [2, 2]
    assert part["ratio"] <= 1.2 and part["bytes"] < 1
    use = ["--attention", "aet:calibrated", "--calibration", str(calibrated)]
    found = json.loads(
        cli("eval", "perplexity", *asked, *use, "--against", "exact", "-o", "json").out
    )
    assert found["result"]["against"]["ratio"] == pytest.approx(part["ratio"], rel=1e-6)
    reads = found["reads"]
    assert reads["kv_bytes_read"] / reads["kv_bytes_held"] == pytest.approx(part["bytes"])


@pytest.mark.parametrize("stored", [[], ["-ctk", "planes"], ["-ctk", "planes", "-ctv", "int8"]])
@pytest.mark.parametrize("given", ["", "skip=0.001", "eps=0.5"])
def test_thresholds_of_tiers(
    cli: Cli, model: Path, tmp_path: Path, stored: list[str], given: str
) -> None:
    """Both are found, or the one that is not given; what follows has the types, and runs."""
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ["-m", str(model), "--text", str(tmp_path / "text.txt"), "--window", "80"]
    technique = f"tiers:{given}" if given else "tiers"
    asked += ["--limit", "2", "--budget", "30%", "--attention", technique]
    ran = cli("calibrate", *asked, *stored)
    assert ran.code == 0, ran.err
    *_, saved, following = ran.err.splitlines()
    assert re.fullmatch(r"saved: thresholds of tiers for \d of 4 heads(; the others .*)?", saved)
    use = ["-m", str(model), "--attention", "tiers:calibrated", *stored]
    assert following == f'next: suffice run {" ".join(use)} "your prompt"'
    part = json.loads((model / "suffice-calibration.json").read_text())["attention"]["tiers"]
    name, _, value = given.partition("=")
    fixed = {name: float(value)} if given else {}
    assert {each: part["options"].get(each) for each in ("eps", "skip")} == {
        "eps": fixed.get("eps"),
        "skip": fixed.get("skip"),
    }
    levels = [each for layer in part["thresholds"] for each in layer if each is not None]
    assert levels and all(isinstance(each, float if given else list) for each in levels)
    assert part["ratio"] <= 1.3
    ran = cli("run", *use, "-n", "2", "hello")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("technique", ["tiers", "tiers:eps=0,sample=8", "tiers:skip=0.001"])
def test_no_level_is_believed_to_cost_nothing(model: Path, technique: str) -> None:
    """On average, errors grow with each threshold, and bytes fall."""
    attention, tokens = ATTENTIONS.build(technique), [3 + 7 * i * i % 190 for i in range(120)]
    names = open_thresholds(attention, ATTENTIONS.given(technique))
    options = {"attention": technique, "dtype": "float32"}
    allocator = Allocator(LLM(str(model), **options).runner, attention, names, [tokens])
    looks = allocator.runs[0]
    assert [*allocator.look()] == [*range(1, looks + 1)]
    levels, errors, read = allocator._levels, allocator._errors, allocator._bytes
    assert (errors[1:].mean((1, 2)) > 0).all() and (errors[0] == 0).all()
    for i, level in enumerate(levels[1:], start=1):
        for j, other in enumerate(levels[1:], start=1):
            if all(own <= more for own, more in zip(level, other, strict=True)):
                assert errors[i].mean() <= 1.05 * errors[j].mean()
                assert read[i].mean() >= read[j].mean() - 0.02


def test_default_thresholds_are_in_their_ladders() -> None:
    """A look at several thresholds starts from the technique's own."""
    several = [ATTENTIONS.load(name)() for name in ATTENTIONS.names() if name != "exact"]
    several = [each for each in several if len(each.ladders) > 1]
    assert several
    for each in several:
        assert all(getattr(each, name) in own for name, own in each.ladders.items())


def test_what_follows_has_the_weights_of_the_calibration(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    """With a merged adapter it is of both, in a file of its own; what follows runs."""
    own = adapters.write(tmp_path / "own", model, adapters.TARGETS["llama"], rank=4, seed=1)
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ["-m", str(model), "--text", str(tmp_path / "text.txt"), "--window", "60"]
    weights = ["--merge-adapter", str(own)]
    ran = cli("calibrate", *asked, *weights, "--limit", "1")
    assert ran.code == 2 and ran.err.endswith(
        f"--merge-adapter={own}: a calibration with it needs a file of its own: give -o; the one "
        "next to the model is of the model alone\n"
    )
    path = tmp_path / "own.json"
    asked += [*weights, "-o", str(path), "--limit", "1"]
    ran = cli("calibrate", *asked, "--budget", "30%", "--quant", "int8")
    use = f"-m {model} --merge-adapter {own} --attention certified:calibrated --quant int8"
    assert ran.err.splitlines()[-1] == (
        f'next: suffice run {use} "your prompt" --calibration {path}'
    )
    use = [*use.split(), "-n", "2", "hello", "--calibration", str(path)]
    assert cli("run", *use).code == 0
    del use[2:4]
    ran = cli("run", *use)
    assert ran.code == 2 and "calibration own.json: is of model with hash" in ran.err
    ran = cli("calibrate", *asked)
    use = f"-m {model} --merge-adapter {own} --softmax exaq_km:bits=3 --against exact"
    assert ran.err.splitlines()[-1] == f"next: suffice eval perplexity {use} --calibration {path}"


def test_a_window_of_nothing_is_refused(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ["-m", str(model), "--text", str(tmp_path / "text.txt"), "--window", "0"]
    for budget, least in (([], "2 tokens"), (["--budget", "1%"], "8 with --budget")):
        ran = cli("calibrate", *asked, *budget)
        assert ran.code == 2 and ran.err.endswith(f"--window=0: must be at least {least}\n")


def test_it_is_written_next_to_the_model(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ["-m", str(model), "--text", str(tmp_path / "text.txt"), "--window", "40"]
    ran = cli("calibrate", *asked, "--limit", "1")
    assert ran.out.strip() == str(model / "suffice-calibration.json"), ran.err
    assert ran.err.splitlines()[-3:] == [
        "calibrated on 1 window of 40 tokens",
        "saved: levels of exaq and exaq_km in 2, 3 and 4 bits, by layer and head",
        f"next: suffice eval perplexity -m {model} --softmax exaq_km:bits=3 --against exact",
    ]
    ran = cli("run", "-m", str(model), "--softmax", "exaq", "-n", "2", "hello")
    assert ran.code == 0, ran.err


def test_thresholds_are_kept_in_the_configuration(cli: Cli, model: Path, tmp_path: Path) -> None:
    """One technique's after another's; those of the model as it was are replaced."""
    path = model / "config.json"
    (tmp_path / "text.txt").write_text(TEXT)
    before = json.loads(path.read_text())
    asked = ["-m", str(model), "--text", str(tmp_path / "text.txt"), "--window", "60"]
    asked += ["--limit", "1", "--budget", "30%", "--into-config", "--attention"]
    for technique in ("art:block=16", "aet:values=0.01"):
        ran = cli("calibrate", *asked, technique)
        assert (ran.code, ran.out.strip()) == (0, str(path)), ran.err
    use = f"-m {model} --attention aet:calibrated"
    assert ran.err.splitlines()[-1] == f'next: suffice run {use} "your prompt"'
    assert cli("run", *use.split(), "-n", "2", "hello").code == 0
    stored = json.loads(path.read_text())
    assert list(stored.pop("suffice_calibration")["attention"]) == ["art", "aet"]
    assert stored == before and not (model / "suffice-calibration.json").exists()
    path.write_text(path.read_text().replace("1e-06", "1e-05"))
    assert cli("calibrate", *asked, "aet:values=0.01").code == 0
    assert list(json.loads(path.read_text())["suffice_calibration"]["attention"]) == ["aet"]


def test_a_context_beyond_the_calibrated_one_is_warned_of_once(
    cli: Cli, model: Path, calibrated: Path
) -> None:
    assert read(calibrated).window == 40
    asked = ["-m", str(model), "--raw", "--softmax", "exaq", "--calibration", str(calibrated)]
    asked += ["--ignore-eos", "-q", "-f", str(calibrated.with_name("prompt.txt"))]
    warning = (
        "suffice: warning: the context is longer than the 40 tokens that the calibration saw: "
        "beyond them its loss was not measured; `suffice calibrate --window N` calibrates at N\n"
    )
    calibrated.with_name("prompt.txt").write_text("abc")
    short = cli("run", *asked, "-n", "5")
    assert short.code == 0 and short.err == ""
    grown = cli("run", *asked, "-n", "60")
    assert grown.code == 0 and grown.err == warning
    calibrated.with_name("prompt.txt").write_text(TEXT[:60] * 2)
    assert cli("run", *asked, "-n", "2").err == warning
    exact = [each for each in asked if each not in ("--softmax", "exaq", "--calibration")]
    exact.remove(str(calibrated))
    assert cli("run", *exact, "-n", "2").err == ""


def test_an_older_calibration_is_replaced(cli: Cli, model: Path, calibrated: Path) -> None:
    calibrated.write_text(json.dumps(json.loads(calibrated.read_text()) | {"schema": 1}))
    text = calibrated.with_name("text.txt")
    asked = ["-m", str(model), "--text", str(text), "--window", "40", "--limit", "1"]
    ran = cli("calibrate", *asked, "-o", str(calibrated))
    assert ran.code == 0, ran.err
    assert read(calibrated).layers
    calibrated.write_text("a diary")
    ran = cli("calibrate", *asked, "-o", str(calibrated))
    assert ran.code == 2 and "is no JSON of `suffice calibrate`" in ran.err
    assert calibrated.read_text() == "a diary"


def test_a_changed_model_is_refused(calibrated: Path, model: Path, cli: Cli) -> None:
    with (model / "config.json").open("a") as file:
        file.write("\n")
    asked = ["--softmax", "exaq", "--calibration", str(calibrated)]
    ran = cli("run", "-m", str(model), *asked, "hello")
    assert ran.code == 2 and "calibration found.json: is of model with hash" in ran.err
    before = calibrated.read_text()
    text = ["--text", str(calibrated.with_name("text.txt")), "--window", "40", "--limit", "1"]
    ran = cli("calibrate", "-m", str(model), *text, "-o", str(calibrated))
    assert ran.code == 2 and ran.err.endswith(": give another -o, or remove it\n")
    assert calibrated.read_text() == before
    own = model / "suffice-calibration.json"
    own.write_text(before)
    ran = cli("calibrate", "-m", str(model), *text)
    assert ran.code == 0 and own.read_text() != before, "of the model as it was: replaced"


def test_bad_input(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ["-m", str(model), "--text", str(tmp_path / "text.txt")]
    ran = cli("calibrate", *asked, "-o", str(tmp_path / "no" / "found.json"))
    assert ran.code == 2 and "there is no folder" in ran.err
    ran = cli("calibrate", *asked, "--window", "1", "-o", str(tmp_path / "found.json"))
    assert ran.code == 2 and "--window=1: must be at least 2" in ran.err
    assert not (tmp_path / "found.json").exists()
    for flags, message in (
        ([], "--into-config: needs --budget: only thresholds of attention are kept"),
        (["--budget", "1%", "-o", "f.json"], "--into-config contradicts -o f.json: give only one"),
        (["--budget", "1%", "-m", "some/model"], "--into-config: some/model must be a folder with"),
    ):
        ran = cli("calibrate", *asked, "--into-config", *flags)
        assert ran.code == 2 and message in ran.err, ran.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--budget", "0"], "--budget=0: must be above 0 and below 1, such as 0.5% or 0.005"),
        (["--budget", "5%%"], "--budget=5%%: must be above 0 and below 1, such as 0.5% or 0.005"),
        (
            ["--budget", "1%", "--window", "7"],
            "--window=7: must be at least 8 with --budget",
        ),
        (["--budget", "x%"], "--budget=x%: must be above 0 and below 1, such as 0.5% or 0.005"),
        (
            ["--budget", "1%", "--attention", "aet:calibrated"],
            "--attention=aet:calibrated: --budget finds the thresholds: leave out calibrated, and "
            "give the other options, if any",
        ),
        (
            ["--budget", "1%", "--attention", "aet:keys=0.9"],
            "--attention=aet:keys=0.9: --budget finds keys for each head: leave out keys",
        ),
        (
            ["--budget", "1%", "--attention", "tiers:skip=0.0002,eps=0.5"],
            "--attention=tiers:skip=0.0002,eps=0.5: --budget finds eps or skip for each head: "
            "leave out eps or skip",
        ),
        (
            ["--budget", "1%", "--attention", "tiers:prompt=0.1"],
            "--attention=tiers:prompt=0.1: --budget decodes every token, so it does not measure "
            "what prompts leave out: leave out prompt",
        ),
        (
            ["--budget", "1%", "--policy", "streaming"],
            "--policy=streaming: --budget is for --policy full",
        ),
        (
            ["--budget", "1%", "--softmax", "exaq"],
            "--softmax=exaq: --budget is for --softmax exact",
        ),
        *(
            (
                [flag, value],
                f"{flag}={value}: needs --budget: without it, softmaxes are calibrated, on "
                "exact attention and full weights",
            )
            for flag, value in (
                ("--attention", "aet:keys=0.5"),
                ("--policy", "snapkv:0.2"),
                ("--quant", "int8"),
                ("--kv-cache-dtype", "int8"),
                ("--audit", "3"),
            )
        ),
    ],
)
def test_bad_budgets(flags: list[str], message: str, cli: Cli, tmp_path: Path) -> None:
    ran = cli("calibrate", "-m", "none", "--text", "none", *flags)
    assert ran.code == 2 and ran.err == f"suffice: error: {message}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softmax": "exaq"}, "softmax=exaq: needs a calibration of the model: make one with "
         "`suffice calibrate --text FILE` and give it as calibration (--calibration)"),
        ({"calibration": True},
         "calibration=found.json: softmax=exact and attention=exact need none"),
        ({"softmax": "exaq", "calibration": True, "attention": "certified"},
         "softmax=exaq contradicts attention=certified, which needs the exact softmax"),
        ({"softmax": "exaq_km:prefill=true", "calibration": True, "attention": "aet"},
         "softmax=exaq_km:prefill=true contradicts attention=aet, "
         "which does not apply to prompts"),
        ({"softmax": "exaq:prefill=true", "calibration": True, "policy": "snapkv"},
         "softmax=exaq:prefill=true contradicts policy=snapkv, which needs prompts with the exact "
         "softmax: leave prefill out"),
        ({"softmax": 3}, "softmax=3: must be a technique or its name. Known: exact, exaq, exaq_km"),
    ],
)  # fmt: skip
def test_contradictions(options: dict[str, Any], message: str, calibrated: Path) -> None:
    given = options | ({"calibration": calibrated} if "calibration" in options else {})
    with pytest.raises(InputError) as error:
        Config.create("an/id", **given)
    assert str(error.value) == message
