"""Techniques from a folder outside of the tree run in the engine as native ones do.

Also tests outside.py, attention/python.py, python_attention.py and the example of one file.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_reference
import tiny
from commands import Cli
from suffice import LLM, SamplingParams
from suffice.attention import ATTENTIONS, SOFTMAXES, Attention, rule_of
from suffice.attention.python import check_limit
from suffice.engine.config import Config
from suffice.engine.service import Engine
from suffice.errors import InputError
from suffice.registry import members
from suffice.speculate import SPECULATORS

pytestmark = pytest.mark.usefixtures("here")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 12
SLOW = "has no native code: its reference runs in Python, which is slow"


def tokens(llm: LLM, prompts: list[list[int]], count: int = 12, **params: Any) -> list[list[int]]:
    sampling = SamplingParams(max_tokens=count, ignore_eos=True, **{"temperature": 0, **params})
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(found.outputs[0].token_ids) for found in llm.generate(given, sampling)]


def load(model: Path, attention: str = "exact", **options: Any) -> LLM:
    given = {"dtype": "float32", "max_model_len": 128, "threads": 2, **options}
    return LLM(model, attention=attention, **given)


@pytest.mark.parametrize("name", ["my_rule:MyRule", "block_means"])
def test_the_command_line_runs_and_audits_it(
    name: str, cli: Cli, checkpoint: Path, installed: None
) -> None:
    given = "run", "-m", str(checkpoint), "--temp", "0", "-n", "9", "--ignore-eos", "a b c " * 20
    ran = cli(*given, "--attention", f"{name}:margin=0.1,recent=8", "--audit", "4")
    assert ran.code == 0, ran.err
    assert f"attention '{name}' {SLOW}" in ran.err.splitlines()[0]
    assert "%, sketch included" in ran.err and "audit of 2 tokens: softmax unread" in ran.err


@pytest.mark.parametrize(
    ("variant", "kv"),
    [
        *((each, "float32") for each in ("llama", "gemma3", "gemma2-uncapped", "falcon")),
        *(("llama", "int8"), ("gemma3", "int8")),
    ],
)
def test_exact_attention_in_python_is_that_of_the_core(
    variant: str, kv: str, tmp_path: Path
) -> None:
    model = tiny.make(
        tmp_path, variant, tokenizer=True
    )  # some have windows, some one key for all queries
    found = []
    for attention in ("exact", "copies:Whole", "my_rule:MyRule:margin=inf"):
        llm = load(model, attention, kv_cache_dtype=kv)
        prompt = [{"prompt_token_ids": PROMPT}]
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
        [answer] = llm.generate(prompt, params)[0].outputs
        trace = llm.runner.trace
        found.append((list(answer.token_ids), answer.cumulative_logprob, trace.rows[:3].copy()))
    for ids, likelihood, rows in found[1:]:
        assert ids == found[0][0]
        assert abs(likelihood - found[0][1]) < (0.02 if kv == "int8" else 1e-3)
        assert np.array_equal(rows[2], found[0][2][2])
        # The core reads whole tiles, and a window may hide a part of one.
        same = rows == found[0][2] if "gemma" not in variant else rows <= found[0][2]
        assert same.all()


def test_a_copy_with_state_reads_what_the_core_reads(checkpoint: Path) -> None:
    options = "keys=0.4,values=0.05"
    counts = []
    for name in ("aet", "copies:Early"):
        llm = load(checkpoint, f"{name}:{options}", audit=3, max_model_len=512)
        found = tokens(llm, [PROMPT * 4, PROMPT[:50]], 24)
        trace = llm.runner.trace
        assert trace.audit is not None
        audit = trace.audit.plain()
        figures = audit["error"]["mean"], audit["missing"]["mean"]
        counts.append((found, trace.rows[:3].copy(), trace.kv_bytes_read, figures))
    assert counts[0][0] == counts[1][0]
    assert np.array_equal(counts[0][1], counts[1][1]) and counts[0][2] == counts[1][2]
    assert counts[0][1][0].sum() < counts[0][1][2].sum()
    assert counts[1][3] == pytest.approx(counts[0][3], rel=1e-3)


def test_going_back_leaves_no_state(checkpoint: Path) -> None:
    """The next tokens after a prompt are the same again, and once more in another cache."""
    runner = load(checkpoint, "copies:Early:keys=0.4,values=0.05").runner
    found = []
    for name in ("one", "other"):
        sequence = runner.open(name, 100)
        runner.prefill(sequence, PROMPT[:90])
        for _ in range(2):
            runner.reserve(sequence, 9)
            found.append(np.stack([runner.step([sequence], [each]) for each in PROMPT[:9]]))
            runner.rewind(sequence, 90)
        runner.close(sequence)
    assert all(np.array_equal(found[0], each) for each in found)


def test_batches_and_drafts_change_no_token(checkpoint: Path) -> None:
    rule = "my_rule:MyRule:margin=0.2,recent=8"
    prompts = [PROMPT, PROMPT[3:40], PROMPT[5:90]]
    alone = load(checkpoint, rule)
    expected = [tokens(alone, [prompt], temperature=0.8, seed=3)[0] for prompt in prompts]
    assert tokens(alone, prompts, temperature=0.8, seed=3) == expected
    drafting = load(checkpoint, rule, speculative_config="ngram:4")
    assert tokens(drafting, prompts, temperature=0.8, seed=3) == expected
    evicting = load(checkpoint, rule, policy="streaming:ratio=0.5")
    assert tokens(evicting, prompts, temperature=0.8, seed=3) != expected


def test_quality_over_bytes(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven eight nine ten " * 40)
    rule = "my_rule:MyRule:margin=0.1,recent=8"
    ran = cli(
        *("eval", "perplexity", "-m", str(checkpoint), "--text", str(text), "--window", "100"),
        *("--limit", "1", "--attention", rule, "--audit", "10", "--against", "exact", "-o", "json"),
    )
    assert ran.code == 0, ran.err
    (tmp_path / "found.json").write_text(ran.out)
    record = json.loads(ran.out)
    assert record["config"]["attention"] == "MyRule(margin=0.1, sinks=4, recent=8)"
    source = hashlib.sha256(Path("my_rule.py").read_bytes()).hexdigest()
    assert record["config"]["outside"] == f"my_rule:MyRule sha256 {source}"
    reads = record["reads"]
    assert 0 < reads["kv_bytes_read"] < reads["kv_bytes_held"] and reads["sketch_bytes_read"] > 0
    assert reads["audit"]["tokens"] > 0 and 0 < reads["audit"]["missing"]["mean"] < 1
    page = tmp_path / "report.html"
    ran = cli("report", str(tmp_path / "found.json"), "-o", str(page))
    assert ran.code == 0, ran.err
    assert "my_rule:MyRule" in page.read_text()


def test_other_seams_take_classes_too(checkpoint: Path) -> None:
    own = {
        "growth": "others:BySeven",
        "policy": "others:Ends:budget=40",
        "speculative_config": "others:Pairs:4",
    }
    for option, value in own.items():
        llm = load(checkpoint, **{option: value})
        assert len(tokens(llm, [PROMPT])[0]) == 12
        kept = getattr(llm.config, option)
        assert type(kept).__module__ == "others"
    softmax = SOFTMAXES.build("others:Halves")
    assert len(softmax.levels(type("C", (), {"heads": 4, "layers": [0, 1]}))[1]) == 4
    made = Config.create("none", speculative_config={"method": "others:Pairs", "adaptive": False})
    assert SPECULATORS.text_of(made.speculative_config) == "others:Pairs:adaptive=false"


def test_an_object_is_a_technique_too(checkpoint: Path) -> None:
    technique = ATTENTIONS.build("my_rule:MyRule:margin=0.2")
    llm = LLM(checkpoint, attention=technique, max_model_len=128)
    assert len(tokens(llm, [PROMPT], 3)[0]) == 3
    assert ATTENTIONS.text_of(technique) == "my_rule:MyRule:margin=0.2"
    with pytest.raises(InputError, match="must be a technique or its name"):
        Config.create("none", attention=type(technique))


def test_info_describes_it(cli: Cli, installed: None) -> None:
    said = cli("info", "attention").out
    assert "block_means  Reads the first and newest rows" in said
    assert "[package my-rule]" in said and "your own: --attention MODULE:CLASS" in said
    for words in (["my_rule:MyRule"], ["block_means"], ["attention", "my_rule:MyRule"]):
        page = cli("info", *words).out
        assert "margin  3        how far below the best block's" in page
        assert f"--attention {words[-1]}:margin=inf equals the exact result" in page
    assert "--growth" in cli("info", "others:BySeven").out


def test_a_model_whose_scores_techniques_do_not_know(tmp_path: Path) -> None:
    model = tiny.make(tmp_path, "gemma2", tokenizer=True)
    with pytest.raises(InputError, match="caps its scores, which techniques do not know"):
        load(model, "my_rule:MyRule:margin=inf")


def test_models_of_transformers_need_native_code(checkpoint: Path) -> None:
    import suffice.integrations.transformers as st

    model = hf_reference.load(checkpoint, torch.float32)
    with pytest.raises(InputError, match="has no native code, which enabled models of transf"):
        st.enable(model, attention="my_rule:MyRule")


def test_a_native_rule_of_its_own_class_runs_natively() -> None:
    assert rule_of(ATTENTIONS.build("aet")).kind == "aet"
    assert rule_of(ATTENTIONS.build("copies:Early")).technique is not None
    early = type(ATTENTIONS.build("copies:Early"))
    own = type("Own", (early,), {"rule": lambda self: early.rule(self), "__module__": "mine"})
    assert rule_of(own()).kind == "aet" and rule_of(own()).technique is None


def test_the_law_of_the_exact_limit_bites() -> None:
    check_limit(ATTENTIONS.build("my_rule:MyRule"), "my_rule:MyRule")
    check_limit(ATTENTIONS.build("broken:Unlimited:rows=1"), "without a limit")
    with pytest.raises(InputError, match="is off by"):
        check_limit(ATTENTIONS.build("broken:Newest:rows=1"), "broken")


def test_a_request_imports_nothing(checkpoint: Path) -> None:
    rule = "my_rule:MyRule:margin=0.2"
    llm = load(checkpoint)
    engine = Engine(llm, attentions=[rule])
    engine.close()
    assert engine.attentions == ["exact", rule]
    assert engine._technique(rule) == 1
    for asked in ("broken:Unlimited:rows=1", "unfinished:X"):
        with pytest.raises(InputError, match=r"^unknown attention"):
            engine._technique(asked)
    assert not {"broken", "unfinished"} & set(sys.modules)


def test_two_packages_of_one_name(folder: Path, tmp_path: Path, installed: None) -> None:
    other = tmp_path / "other-1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (other / "entry_points.txt").write_text("[suffice.attention]\nblock_means = other:Rule\n")
    sys.path.append(str(tmp_path))
    with pytest.raises(InputError, match="both my-rule and other register it: uninstall one"):
        ATTENTIONS.build("block_means")


def test_members_are_those_of_the_protocol() -> None:
    assert {"reference", "rule", "exact_limit", "stateless"} <= set(members(Attention))


def test_nothing_is_looked_for_while_names_are_built_in(folder: Path) -> None:
    program = (
        "import sys; from suffice.engine.config import Config;"
        "Config.create('none', attention='art', policy='snapkv:ratio=0.5');"
        "print('importlib.metadata' in sys.modules, sys.path.count(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert ran.stdout.split() == ["False", "0"], ran.stderr
