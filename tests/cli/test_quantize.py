"""`suffice quantize` on a tiny model, and what runs with what it wrote."""

from __future__ import annotations

import copy
import fcntl
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tiny
from calibrating import ASKED, TEXT, by_reference, text_flags
from commands import Cli
from suffice import LLM
from suffice.checkpoints.formats.quantized_file import open_quantized
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.none import NoQuant
from suffice.quant.packed_codes import INPUT_LEVELS
from suffice.quantize.job import Quantizing
from suffice.quantize.sensitivity import Sensitivity
from suffice.text.tokenizer import load_tokenizer

QUICK = "rtn:group=32,compensate=true"  # where it does not matter how weights are coded


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.shallow(tmp_path / "model", "llama-bias")


@pytest.fixture
def quantize(cli: Cli, model: Path, tmp_path: Path) -> Any:
    asked = text_flags(tmp_path, 6)

    def run(method: str = "kmeans", output: str = "out.safetensors", *more: str) -> Any:
        path = tmp_path / output
        return cli("quantize", "-m", str(model), *asked, "--method", method, "-o", str(path), *more)

    return run


_written: dict[str, bytes] = {}


@pytest.fixture
def written(quantize: Any, tmp_path: Path) -> Any:
    """Writes the file of a method, which is made once: tests of what is in it can share it."""

    def write(method: str = "kmeans", output: str = "out.safetensors") -> Path:
        path: Path = tmp_path / output
        if method not in _written:
            ran = quantize(method, output)
            assert ran.code == 0, ran.err
            _written[method] = path.read_bytes()
        path.write_bytes(_written[method])
        return path

    return write


def whole_file(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["suffice"]), load_file(path)


@pytest.mark.parametrize(
    "method",
    [
        "kmeans",
        "kmeans:hadamard=false,act_bits=8",
        "kllm:outliers=0.02",
        "kmeans:hadamard=false,act_bits=3,act_group=32",
        "kmeans:hadamard=false,act_bits=4,sites=o+down",
        "kllm:offline=true",
        "kllm:act_fisher=true,fisher=false",
        QUICK,
    ],
)
def test_what_was_written_runs(quantize: Any, model: Path, tmp_path: Path, method: str) -> None:
    """The native step on the file against the reference decoder on the same weights."""
    ran = quantize(method)
    assert (ran.code, ran.out.strip()) == (0, str(tmp_path / "out.safetensors")), ran.err
    assert not (tmp_path / "out.safetensors.layers").exists()
    path = tmp_path / "out.safetensors"
    _written[method] = path.read_bytes()
    opened = open_quantized(path)
    original = open_checkpoint(model)
    assert opened.config == original.config
    dense = DecoderWeights.from_checkpoint(original, NoQuant("float32")).weights
    for name, weight in opened.weights.items():
        if isinstance(weight, PackedLinear):
            before = dense[name]
            assert isinstance(before, PackedLinear)
            error = np.linalg.norm(weight.unpack() - before.unpack())
            error /= np.linalg.norm(before.unpack())
            assert error < (0.01 if name == "embed" else 0.2), name
            assert weight.dtype == "codes"
            if before.bias is not None:
                assert np.array_equal(weight.bias, before.bias)
    llm = LLM(str(path), kv_cache_dtype="float32")
    assert llm.tokenizer.encode(TEXT) == load_tokenizer(model).encode(TEXT)
    prompt = llm.tokenizer.encode(TEXT[:60])
    (output,) = llm.generate(TEXT[:60], ASKED, use_tqdm=False)
    # Inputs of few bits, the head's of 8 among them, jump to another level where sums are rounded
    # otherwise: sooner or later the two part ways.
    agree = 10 if method in ("kmeans", QUICK) else 1
    assert list(output.outputs[0].token_ids)[:agree] == by_reference(opened, prompt)[:agree]
    with pytest.raises(InputError, match=re.escape(f"is quantized already, by {method}: leave")):
        LLM(str(path), quantization="int8")


@pytest.mark.parametrize("a", [4, 8])
def test_sites_switch_separately(written: Any, tmp_path: Path, a: int) -> None:
    """Inputs of the sites that are named have `a` bits, the others 16 as without."""
    written(f"kmeans:act_bits={a},sites=o+gate_up")
    written("kmeans", "plain.safetensors")
    (facts, tensors), (_, plain) = map(whole_file, sorted(tmp_path.glob("*.safetensors")))
    for name, matrix in facts["matrices"].items():
        if matrix["type"] != "codes":
            continue
        chosen = name.rpartition(".")[2] in ("o", "gate", "up")
        assert (f"{name}.inputs" in tensors) == (chosen and a == 4), name
        assert matrix["most"] == INPUT_LEVELS[8 if chosen and a == 8 else 16], name
    assert torch.equal(tensors["layers.0.q.data"], plain["layers.0.q.data"])


def test_an_interrupted_run_goes_on(
    quantize: Any, written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(output="whole.safetensors")
    layer = Quantizing._layer
    done: list[int] = []

    def interrupted(self: Quantizing, layers: Any, index: int) -> Any:
        if index == 1 and len(done) == 1:
            done.append(-1)
            raise KeyboardInterrupt
        done.append(index)
        return layer(self, layers, index)

    monkeypatch.setattr(Quantizing, "_layer", interrupted)
    stopped = quantize()
    assert stopped.code == 130 and "the same command goes on with what is left" in stopped.err
    assert not (tmp_path / "out.safetensors").exists()
    kept = sorted(path.name for path in (tmp_path / "out.safetensors.layers").iterdir())
    windows = [f"tokens-{number:04}.safetensors" for number in range(6)]
    assert kept == ["0000.safetensors", "lock", *windows]
    monkeypatch.delattr(Sensitivity, "of")  # the windows are not weighed again
    with pytest.raises(InputError, match="is a part of an unfinished `suffice quantize`: run"):
        open_quantized(tmp_path / "out.safetensors.layers" / kept[0])
    ran = quantize("kllm:act_bits=16")
    assert ran.code == 2 and "is of another quantization: remove it, or give another -o" in ran.err
    layers = tmp_path / "out.safetensors.layers"
    (layers / "0000.safetensors-0123456789abcdef.part").touch()  # of a process that was killed
    assert quantize().code == 0
    assert done == [0, -1, 1] and not layers.exists()
    whole, resumed = (whole_file(tmp_path / f"{name}.safetensors") for name in ("whole", "out"))
    assert whole[0] == resumed[0]
    assert whole[1].keys() == resumed[1].keys()
    assert all(torch.equal(each, resumed[1][name]) for name, each in whole[1].items())


def test_a_folder_belongs_to_one_run_and_one_text(
    quantize: Any, model: Path, tmp_path: Path
) -> None:
    """A second run waits outside, other tokens are another job, and others' files stay."""
    folder = tmp_path / "out.safetensors.layers"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran = quantize(QUICK)
        assert ran.code == 2 and "another run is making" in ran.err, ran.err
    assert quantize(QUICK).code == 0
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    used, fresh = (
        DecoderWeights.from_checkpoint(open_checkpoint(model), NoQuant("float32")) for _ in range(2)
    )
    method = QUANTS.build(QUICK)
    windows = [[1, *range(10, 80)]] * 2
    started = Quantizing(used, method, windows, tmp_path / "half.safetensors", {})
    next(started.run())
    with pytest.raises(InputError, match="the decoder is quantized already: give one in float32"):
        Quantizing(used, method, windows, tmp_path / "half.safetensors", {})
    other = Quantizing(fresh, method, windows[:1], tmp_path / "half.safetensors", {})
    with pytest.raises(InputError, match="is of another quantization: remove it"):
        next(other.run())


def test_nobody_elses_file_is_touched(quantize: Any, tmp_path: Path) -> None:
    """All users that may read files may read the model."""
    other = tmp_path / "out.safetensors.part"
    other.write_text("mine")
    before = {path.name for path in tmp_path.iterdir()}
    assert quantize(QUICK).code == 0
    assert other.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == before | {"out.safetensors"}
    assert (tmp_path / "out.safetensors").stat().st_mode == other.stat().st_mode


def test_info_shows_what_is_lost(cli: Cli, written: Any, tmp_path: Path) -> None:
    written()
    ran = cli("info", "-m", str(tmp_path / "out.safetensors"))
    assert ran.code == 0, ran.err
    assert "quantized        kmeans from model" in ran.out
    assert "calibrated on    text.txt, 6 windows of 40 tokens" in ran.out
    assert "bits per weight of the matrices" in ran.out
    lost = [line for line in ran.out.splitlines() if line.startswith("layers.1 ")]
    assert len(lost) == 1 and " down " in lost[0] and lost[0].count("%") == 7


def test_commands_take_the_file(cli: Cli, written: Any, tmp_path: Path) -> None:
    written()
    path = str(tmp_path / "out.safetensors")
    ran = cli("run", "-m", path, "--raw", "-p", "The owls", "-n", "4", "--temp", "0")
    assert ran.code == 0 and ran.out, ran.err
    text = str(tmp_path / "text.txt")
    ran = cli("eval", "perplexity", "-m", path, "--text", text, "--window", "40", "--limit", "2")
    assert ran.code == 0 and "perplexity" in ran.out, ran.err


def test_refused(quantize: Any, cli: Cli, tmp_path: Path) -> None:
    for arguments, message in (
        (("kmeans", "out.bin"), "must be a .safetensors file in a folder that is there"),
        (("kmeans", "no/out.safetensors"), "must be a .safetensors file in a folder that is there"),
        (("int8",), "--method int8: needs no calibration; run the model with --quant int8"),
        (("kmeens",), "unknown quant 'kmeens'. Did you mean 'kmeans'?"),
        (
            ("rtn:bits=7",),
            "--method rtn:bits=7: codes of 7 bits cannot be stored; allowed: 2..6, 8",
        ),
        (
            ("kmeans:bits=5,group=8",),
            "kmeans: group=8: must be a multiple of 32, such as 32, or none",
        ),
        (
            ("kmeans:act_bits=4,act_group=24",),
            "kmeans: act_group=24: must be a multiple of 16, or none",
        ),
        (("kmeans:act_group=32",), "kmeans: act_group=32 goes with act_bits=3 or 4, not 16"),
        (
            ("kmeans:act_bits=8,offline=true",),
            "kmeans: offline=true goes with act_bits=3 or 4 and outliers",
        ),
        (("kllm:offline=true,outliers=0",), "offline=true goes with act_bits=3 or 4 and outliers"),
        (("kmeans:sites=down",), "kmeans: sites=down goes with act_bits=3, 4 or 8, not 16"),
        (("kmeans:act_bits=8,sites=",), "sites= names none; known: linear, qkv, o, gate_up, down"),
        (("kmeans:act_bits=8,sites=o+down+o",), "sites=o+down+o: 'o' is given twice"),
        (
            ("kmeans:act_bits=4,sites=o+gate",),
            "unknown site 'gate'. Did you mean 'gate_up'? Known: down",
        ),
        (("kmeans", "o.safetensors", "--limit", "0"), "--limit=0: must be at least 1 window"),
        (("kmeans", "o.safetensors", "--limit", "1"), "the text has 40 tokens to calibrate on; at"),
        (("kmeans", "o.safetensors", "--quant", "int8"), "unknown flag '--quant'"),
        (("kmeans", "o.safetensors", "-t", "0"), "-t 0: must be between 1 and"),
        (("kmeans", "model/o.safetensors"), "would be one of the model's own files"),
    ):
        ran = quantize(*arguments)
        assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err, ran.err
    assert not list(tmp_path.glob("*.safetensors*"))


@pytest.fixture
def refused(cli: Cli, tmp_path: Path) -> Any:
    """Returns the one line with which a file of these facts and tensors is refused."""
    broken = tmp_path / "broken.safetensors"

    def line(facts: Any, tensors: Any) -> str:
        metadata = None if facts is None else {"suffice": json.dumps(facts)}
        save_file(tensors, broken, metadata=metadata)
        ran = cli("run", "-m", str(broken), "-p", "x")
        assert ran.code == 2 and len(ran.err.splitlines()) == 1, ran.err
        return str(ran.err)

    return line


def test_damaged_matrices(written: Any, refused: Any, tmp_path: Path) -> None:
    """Facts of matrices that do not fit their tensors, or each other."""
    written()
    facts, tensors = whole_file(tmp_path / "out.safetensors")
    differ = "q, k, v of layer 1 are stored differently"
    contradicted = "is damaged: 'layers.1.q' has levels that contradict its header"
    number = "is damaged: 'layers.1.q' has a tensor or a number of the wrong type"
    for key, value, message in (
        ("loss", "much", "is damaged: its header lacks 'loss', or it has no value"),
        ("rotation", 16, differ),
        ("rotation", 2**40, number),
        ("loss", float("inf"), "is damaged: its header is not a JSON object"),
        ("share", 0.01, contradicted),
        ("input_group", 32, contradicted),
        ("thresholds", [-1.0, 1.0], contradicted),
    ):
        matrices = copy.deepcopy(facts["matrices"])
        matrices["layers.1.q"][key] = value
        assert message in refused(facts | {"matrices": matrices}, tensors)
    for key, value, message in (
        ("group", 2147483616, "a scale for 2147483616 columns; at most 64 are allowed"),
        ("group", 2**40, number),
        ("group", 48, "group=48: must be a multiple of 32"),
        ("group", "x", "'layers.1.q' has a layout that is not known"),
        ("scales", "float64", "no codes with float64 scales and none minima"),
        ("wide", 1, "'layers.1.q' has a layout that is not known"),
    ):
        matrices = copy.deepcopy(facts["matrices"])
        matrices["layers.1.q"]["layout"][key] = value
        assert message in refused(facts | {"matrices": matrices}, tensors)
    square = tensors | {"layers.1.q.levels": tensors["layers.1.q.levels"].view(4, 4)}
    assert contradicted in refused(facts, square)
    written("kllm:outliers=0.02")
    facts, tensors = whole_file(tmp_path / "out.safetensors")
    other = tensors | {"layers.1.k.inputs": tensors["layers.1.k.inputs"] * 0.5}
    assert differ in refused(facts, other)
    for key, value, message in (
        ("input_group", 24, "a scale for 24 inputs; a multiple of 16 is allowed"),
        ("input_group", "x", number),
        ("thresholds", [-1.0, 1.0], differ),
        ("thresholds", [1.0, -1.0], "thresholds must ascend"),
        ("thresholds", [1.0], "is damaged: not enough values to unpack"),
        ("thresholds", 3, "is damaged: cannot unpack"),
    ):
        matrices = copy.deepcopy(facts["matrices"])
        matrices["layers.1.q"][key] = value
        assert message in refused(facts | {"matrices": matrices}, tensors)


def test_damaged_files(written: Any, refused: Any, cli: Cli, tmp_path: Path) -> None:
    written()
    path = tmp_path / "out.safetensors"
    facts, tensors = whole_file(path)

    def damaged(message: str, facts: Any = facts, tensors: Any = tensors) -> None:
        assert message in refused(facts, tensors)

    damaged("is not a model of `suffice quantize`: its header lacks 'suffice'", facts=None)
    damaged("has schema 1; 3 is known: quantize again", facts | {"schema": 1})
    lacking = {name: each for name, each in tensors.items() if name != "layers.1.up.data"}
    damaged("is damaged: 'layers.1.up.data'", tensors=lacking)
    lacking = {name: each for name, each in tensors.items() if name != "final_norm"}
    damaged("is damaged: 'final_norm' is missing or not [64]", tensors=lacking)
    short = tensors | {"layers.1.up.data": tensors["layers.1.up.data"][:, :64].contiguous()}
    damaged("is damaged: packed weight has", tensors=short)
    lacking = {name: each for name, each in tensors.items() if name != "tokenizer"}
    damaged("is damaged: it has no tokenizer", tensors=lacking)
    damaged("is damaged: its configuration lacks", facts | {"config": {}})
    for name in ("method", "model", "text"):
        left = {key: value for key, value in facts.items() if key != name}
        damaged("is damaged: its header lacks '", left)
    lacks = "is damaged: its header lacks 'hash', or it has no value"
    damaged(lacks, facts | {"model": {"name": "x"}})
    for field, value, message in (
        ("activation", "relu2", "activation=relu2; allowed: silu, gelu_tanh, gelu, relu"),
        ("norm", "layer_norm", "norm=layer_norm; allowed: rms, layer"),
        ("placement", None, "placement=None; allowed: pre, post, sandwich, output"),
        ("gated", "yes", "gated=yes; allowed: False, True"),
        ("embed_scale", "x", "config field 'embed_scale' = 'x' must be a finite number"),
        ("ropes", [], "a layer refers to a rope that does not exist"),
    ):
        config = facts["config"] | {field: value}
        damaged(f"its configuration lacks or has {message}", facts | {"config": config})
    damaged("is damaged: its header is not a JSON object", [facts])
    damaged("the tokenizer cannot be loaded", facts | {"tokenizer": {}})
    for text, message in (
        (b"\xff\xfe", "is damaged: its tokenizer is not text"),
        (b"{]", "is not valid JSON: "),
    ):
        spoilt = torch.tensor(list(text), dtype=torch.uint8)
        damaged(message, tensors=tensors | {"tokenizer": spoilt})
    broken = tmp_path / "broken.safetensors"
    save_file(tensors, broken, metadata={"suffice": "{"})
    ran = cli("info", "-m", str(broken))
    assert ran.code == 2 and "its header is not a JSON object" in ran.err
    broken.write_bytes(path.read_bytes()[:1000])
    ran = cli("run", "-m", str(broken), "-p", "x")
    assert ran.code == 2 and "is not a valid safetensors file" in ran.err


def test_without_pytorch_it_says_what_to_install(
    quantize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = quantize()
    said = "suffice: error: `suffice quantize` needs PyTorch: pip install 'suffice[quantize]'"
    assert ran.code == 2 and ran.err.splitlines()[-1] == said and "Traceback" not in ran.err
    assert not list(tmp_path.glob("*.safetensors*"))
