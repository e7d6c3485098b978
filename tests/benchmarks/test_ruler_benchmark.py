"""The RULER benchmark on a tiny model: shared prompts change nothing, tables tell it rightly."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import other_device
import tiny
from benchmarks.attention import ruler
from benchmarks.harness import settings, shared_prompts
from suffice import LLM, SamplingParams
from suffice.attention.aet import AET
from suffice.attention.calibration import Calibration, Thresholds, write
from suffice.cache.kv import KVCache
from suffice.checkpoints.files import fingerprint
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.errors import InputError
from suffice.trace import Trace

# Not steps: how many of them two requests share depends on when the second prompt is done.
COUNTS = ("kv_bytes_read", "kv_bytes_held", "sketch_bytes_read", "tile_rows_read", "tile_rows_held")
TILED = "tiers:eps=0,skip=0,prompt=0.5"  # its prompts are its own
SHARED = (
    "exact",
    "aet:keys=0.8",
    "art:change=1e-1,angle=1e-1,patience=1",
    "certified:bounded=false,eps=0.5",
    "snapkv:budget=40",
    "snapkv:ratio=0.2",
    "pyramidkv:ratio=0.6",
    "streaming:ratio=0.5",
    "h2o:ratio=0.3",
    "h2o:rank_only=true + art:change=1e-1,angle=1e-1,patience=1",
    "quest:ratio=0.4",
    "snapkv:rank_only=true + art:change=1e-1,angle=1e-1,patience=1",
    TILED,
)


def counts(trace: Trace) -> list[Any]:
    return [*(getattr(trace, name) for name in COUNTS), trace.rows.tolist()]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_shared_prompt_is_as_good_as_ones_own(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.make(tmp_path / "model", family, tokenizer=True, max_position_embeddings=512)
    parts = {"prefill_chunk": 64}  # a prompt comes in several
    whole = Config.create(model, threads=1, max_model_len=400, **parts)
    prompts = [[1, *(3 + 7 * n * n % 190 for n in range(size))] for size in (200, 330)]
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    config, base, tokenizer = load(whole)
    techniques = settings.accepted(model, list(SHARED), {})
    of_another = Calibration(
        "c.json", "m", "ab", 4, (), {}, {}, {"aet": Thresholds({}, ((None,),))}
    )
    calibrated = techniques["exact"] | {
        "attention": AET(calibrated=True),
        "calibration": of_another,
    }
    with pytest.raises(InputError, match=r"calibration c\.json: is of m with hash ab, but"):
        shared_prompts.runners(config, base, {"aet:calibrated": calibrated})
    runners, shared = shared_prompts.runners(config, base, techniques)
    run, ran = shared._runner.prefill, []
    monkeypatch.setattr(
        shared._runner, "prefill", lambda at, tokens: ran.append(len(tokens)) or run(at, tokens)
    )
    read = {}
    for name in SHARED:
        llm = LLM(model, threads=1, max_model_len=400, **parts, **settings.parts(name))
        alone = [out.outputs[0].token_ids for out in llm.generate(prompts, greedy, use_tqdm=False)]
        sharing = LLM.from_parts(runners[name].config, runners[name], tokenizer)
        outputs = sharing.generate(prompts, greedy, use_tqdm=False)
        assert [out.outputs[0].token_ids for out in outputs] == alone, name
        assert counts(sharing.runner.trace) == counts(llm.runner.trace), name
        assert bool(llm.runner.trace.tile_rows_held) == (name == TILED), name
        read[name] = llm.runner.trace.kv_bytes_read / llm.runner.trace.kv_bytes_held
    less = [name for name in SHARED if read[name] < 0.95 * read["exact"]]
    assert len(less) > 6, read
    assert ran == [201, 331], "each prompt once for all"
    shared.forget()
    assert shared.run(prompts[0]).cache.length == len(prompts[0])


@pytest.mark.parametrize("policy", ["exact", "snapkv:ratio=0.4", "h2o:ratio=0.4"])
def test_prompts_by_torch_are_as_good(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.make(tmp_path / "model", "gemma3", tokenizer=True, max_position_embeddings=512)
    whole = {"max_model_len": 400, "dtype": "float32", "kv_cache_dtype": "float32"}
    config, base, _ = load(Config.create(model, threads=1, **whole))
    techniques = settings.accepted(model, [policy], {})
    tokens = [1, *(3 + 7 * n * n % 190 for n in range(330))]
    monkeypatch.setattr(shared_prompts, "TORCH_ROWS", 100)
    found = []
    with other_device.present() as there:
        for device in (None, there):
            runners, _ = shared_prompts.runners(config, base, techniques, device)
            sequence = runners[policy].open("", 400)
            found.append((sequence.cache, runners[policy].prefill(sequence, tokens)))
    (engine, ours), (torch, theirs) = found
    assert np.allclose(ours, theirs, atol=1e-4)
    assert not np.array_equal(ours, theirs), "the engine ran both"
    for layer in range(engine.layers):
        for of in (KVCache.keys, KVCache.values):
            own, other = of(engine, layer), of(torch, layer)
            assert own.shape == other.shape and np.allclose(own, other, atol=1e-4)


def test_a_table_says_who_ran_the_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make(
        tmp_path / "model", tokenizer=True, max_position_embeddings=1024, num_hidden_layers=1
    )
    asked = ["ruler", "--model", str(model), "--out", str(tmp_path), "--threads", "1"]
    asked += ["--tasks", "niah_single_1", "--lengths", "900", "--samples", "1"]
    monkeypatch.setattr(sys, "argv", [*asked, "--settings", "exact", "--device", "cpu"])
    assert ruler.main() == 0
    found, drawn = told(tmp_path)
    assert found["engine"]["prompts"] == "PyTorch in float32 on the host"
    assert "Prompts were run by PyTorch in float32 on the host." in drawn
    monkeypatch.setattr(sys, "argv", [*asked, "--settings", "exact"])
    assert ruler.main() == 2, "other prompts are not mixed with these"
    monkeypatch.setattr(sys, "argv", [*asked, "--device", "tpu"])
    assert ruler.main() == 2


def test_a_table_says_what_settings_were_calibrated_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.make(
        tmp_path / "model", tokenizer=True, max_position_embeddings=1024, num_hidden_layers=1
    )
    text = {"name": "a.txt", "sha256": "12", "line_ends": "LF", "windows": 2, "window": 100}
    heads = LLM(model, max_model_len=64).runner.decoder.config.kv_heads
    stored: dict[str, Any] = {
        "model": {"name": "model", "hash": fingerprint(model), "heads": 4},
        "attention": {"aet": {"options": {}, "thresholds": [[0.5] * heads], "text": text}},
    }
    path = tmp_path / "found.json"
    write(path, stored)
    monkeypatch.setattr(ruler, "COUNTS", 0)
    asked = ["ruler", "--model", str(model), "--out", str(tmp_path), "--threads", "1"]
    asked += ["--tasks", "niah_single_1", "--lengths", "900", "--samples", "1"]
    asked += ["--calibration", str(path), "--settings", "aet:calibrated", "snapkv:ratio=0.5"]
    monkeypatch.setattr(sys, "argv", asked)
    assert ruler.main() == 0, capsys.readouterr().err
    found, drawn = told(tmp_path)
    (cells,) = found["cells"].values()
    own = {name: cell.get("calibrated_on") for name, cell in cells.items()}
    assert [own["exact"], own["snapkv:ratio=0.5"]] == [None, None]
    digest = own["aet:calibrated"].pop("digest")
    assert len(digest) == 16 and own["aet:calibrated"] == text
    assert "Calibrated on a text (a.txt, 2 windows of 100 tokens): `aet:calibrated`." in drawn
    for change in ({"thresholds": [[0.6] * heads]}, {"text": text | {"name": "b.txt"}}):
        part = stored["attention"]["aet"] | change
        write(path, stored | {"attention": {"aet": part}})
        assert ruler.main() == 2, "stored cells have another calibration"
        assert "aet:calibrated: results are of another calibration" in capsys.readouterr().err
    write(path, stored)
    (tmp_path / "ruler_model.json").write_text(json.dumps(found))
    assert ruler.main() == 0, "the first results had no digest"
    write(path, stored | {"attention": {"aet": {"options": {}, "thresholds": [[0.5] * heads]}}})
    assert ruler.main() == 2, "the text is not known"
    assert "does not say which text it is of: calibrate again" in capsys.readouterr().err
    write(path, stored | {"model": {"name": "other", "hash": "ab", "heads": 4}})
    (tmp_path / "ruler_model.json").unlink()
    assert ruler.main() == 2, "of another model"
    path.unlink()
    assert ruler.main() == 2 and not (tmp_path / "ruler_model.json").exists(), "there is none"


def test_what_was_refused_is_measured_once_it_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.make(
        tmp_path / "model", tokenizer=True, max_position_embeddings=1024, num_hidden_layers=1
    )
    heads = LLM(model, max_model_len=64).runner.decoder.config.kv_heads
    text = {"name": "a.txt", "windows": 2, "window": 100}
    part = {"options": {}, "thresholds": [[0.5] * heads], "text": text}
    monkeypatch.setattr(ruler, "COUNTS", 0)
    asked = ["ruler", "--model", str(model), "--out", str(tmp_path), "--threads", "1"]
    asked += ["--tasks", "niah_single_1", "--lengths", "900", "--samples", "1"]
    asked += ["--calibration", str(tmp_path / "found.json"), "--settings", "aet:calibrated"]
    monkeypatch.setattr(sys, "argv", asked)
    said = []
    for technique in ("art", "aet", "art"):
        stored = {"model": {"name": "model", "hash": fingerprint(model), "heads": 4}}
        write(tmp_path / "found.json", stored | {"attention": {technique: part}})
        assert ruler.main() == 0
        said.append("refused: calibration found.json: has no thresholds" in told(tmp_path)[1])
    assert said == [True, False, False]


def told(folder: Path) -> tuple[dict[str, Any], str]:
    path = folder / "ruler_model.json"
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def test_what_exact_attention_cannot_do_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.make(
        tmp_path / "model", tokenizer=True, max_position_embeddings=1024, num_hidden_layers=1
    )
    asked = ["ruler", "--model", str(model), "--out", str(tmp_path), "--threads", "1"]
    asked += ["--tasks", "niah_single_1", "--lengths", "900"]

    def run(settings: list[str], samples: int) -> int:
        more = ["--samples", str(samples), "--settings", *settings]
        monkeypatch.setattr(sys, "argv", [*asked, *more])
        return ruler.main()

    assert run(["snapkv:ratio=0.5"], 1) == 0
    found, drawn = told(tmp_path)
    cells = found["cells"]["niah_single_1 at 900"]
    assert list(cells) == ["exact"] and cells["exact"]["score"] == 0
    assert "| niah_single_1 at 900 | 0 | 1 |" in drawn and "snapkv" not in drawn
    monkeypatch.setattr(ruler, "COUNTS", 0)
    assert run(["snapkv:ratio=0.5", "h2o:ratio=0.2 + art:change=1e-2"], 1) == 0
    found, drawn = told(tmp_path)
    (again,) = found["cells"].values()
    assert again["exact"] == cells["exact"], "not measured again"
    share = again["snapkv:ratio=0.5"]["kv_bytes_read"] / again["snapkv:ratio=0.5"]["kv_bytes_held"]
    assert 0.5 < share < 0.7, "half of the prompt and all that follows"
    assert f"| `snapkv:ratio=0.5` | 0.0 ± 0.0 | +0.0 | {share:.3f} | 0 ({share:.2f}) |" in drawn
    assert "| `h2o:ratio=0.2 + art:change=1e-2` | refused: policy 'h2o' sums the weights" in drawn
    assert run(["exact"], 2) == 0
    _, drawn = told(tmp_path)
    assert "| `snapkv:ratio=0.5` |  |  |  |  |" in drawn, "it did not answer the same samples"
    other = ["--out", str(tmp_path), "--model", "elsewhere/model"]
    monkeypatch.setattr(sys, "argv", ["ruler", *other])
    assert ruler.main() == 2
    monkeypatch.setattr(sys, "argv", [*asked, "--tasks", "niah_single_4"])
    assert ruler.main() == 2
    assert "unknown task 'niah_single_4'. Did you mean" in capsys.readouterr().err
