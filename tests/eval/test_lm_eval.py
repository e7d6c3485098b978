"""lm-evaluation-harness finds with this model what it finds with transformers'."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import Cli
from golden import model_file
from suffice.errors import InputError
from suffice.eval.tasks import TASKS, encoded
from task_rows import PIQA, ROWS, YAML, Rows, real_piqa, their_task, write_lines

pytest.importorskip("lm_eval")

# Of the harness and of what it imports
pytestmark = pytest.mark.filterwarnings("ignore")

EXACT = {"dtype": "float32", "kv_cache_dtype": "float32", "max_model_len": 256}


@pytest.fixture(scope="module")
def ours(checkpoint: Path) -> Any:
    return suffice_model(str(checkpoint))


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> Any:
    pytest.importorskip("accelerate")  # which their model needs
    from lm_eval.models.huggingface import HFLM

    options = {"dtype": "float32", "device": "cpu", "batch_size": 1, "max_length": 256}
    return HFLM(pretrained=str(checkpoint), **options)


def suffice_model(name: str, **options: Any) -> Any:
    from suffice.eval.lm_eval import SufficeLM

    return SufficeLM(name, **{**EXACT, **options})


def instances(kind: str, *arguments: Any) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def piqa_requests(rows: Rows, folder: Path) -> list[Any]:
    task = their_task("piqa", rows, folder)
    return [
        request
        for doc in task.eval_docs
        for request in task.construct_requests(doc, task.fewshot_context(doc, 0))
    ]


def assert_alike(ours: Any, theirs: Any, requests: list[Any]) -> None:
    """Compare log likelihoods and what is greedy."""
    found = ours.loglikelihood(requests, disable_tqdm=True)
    expected = theirs.loglikelihood(requests, disable_tqdm=True)
    assert [log for log, _ in found] == pytest.approx([log for log, _ in expected], abs=1e-3)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_piqa_is_transformers(checkpoint: Path, theirs: Any, tmp_path: Path, mode: str) -> None:
    ours = suffice_model(str(checkpoint), mode=mode, batch_size=5)
    assert_alike(ours, theirs, piqa_requests(PIQA, tmp_path))


def test_prompts_refuse_a_technique_for_steps(checkpoint: Path, tmp_path: Path) -> None:
    model = suffice_model(str(checkpoint), mode="prefill", attention="aet:keys=0.9")
    with pytest.raises(InputError, match="attention='aet': is for decode steps"):
        model.loglikelihood(piqa_requests(PIQA, tmp_path), disable_tqdm=True)
    options = {"max_gen_toks": 3, "until": ["no such text"]}
    assert model.generate_until(instances("generate_until", ("The owls", options)), True)[0]


@pytest.mark.model
def test_real_piqa_is_transformers(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM

    rows, path = real_piqa(50), model_file("smollm2-135m")
    if path is None:
        pytest.skip("no model: run `suffice pull smollm2-135m`")
    ours = suffice_model(str(path), max_model_len=2048)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # In float32 their softmax over 49152 tokens alone is off by 2e-3 for a hundred tokens
    options = {"batch_size": 1, "max_length": 2048, "softmax_dtype": "float64"}
    theirs = HFLM(pretrained=model, tokenizer=ours.tokenizer, **options)
    assert_alike(ours, theirs, piqa_requests(rows, tmp_path))


def accuracies(model: Any, rows: Rows, folder: Path) -> list[float]:
    from lm_eval.evaluator import evaluate

    tasks = {"piqa": their_task("piqa", rows, folder)}
    found = evaluate(model, tasks, bootstrap_iters=0)["results"]["piqa"]
    return [found["acc,none"], found["acc_norm,none"]]


def command_accuracies(cli: Cli, rows: Rows, folder: Path, *model: str) -> list[float]:
    write_lines(folder / "piqa.jsonl", rows)
    exact = ("--dtype", "float32", "--kv-cache-dtype", "float32", "-c", "256")
    ran = cli("eval", "tasks", *model, *exact, "--data-dir", str(folder), "-o", "json")
    (found,) = json.loads(ran.out)["result"]["tasks"]
    assert found["questions"] == len(rows)
    return [found["acc"], found["acc_norm"]]


def test_accuracies_are_those_of_the_command(
    cli: Cli, checkpoint: Path, ours: Any, tmp_path: Path
) -> None:
    found = accuracies(ours, PIQA, tmp_path)
    assert found == command_accuracies(cli, PIQA, tmp_path, "-m", str(checkpoint))
    assert found[0] != found[1] and 0 < found[0] < 1, "the rows must tell the measures apart"


@pytest.mark.model
def test_real_accuracies_are_those_of_the_command(cli: Cli, tmp_path: Path) -> None:
    rows, path = real_piqa(50), model_file("smollm2-135m")
    if path is None:
        pytest.skip("no model: run `suffice pull smollm2-135m`")
    found = accuracies(suffice_model(str(path)), rows, tmp_path)
    assert found == command_accuracies(cli, rows, tmp_path, "-m", str(path))


@pytest.mark.parametrize("name", ROWS)
def test_tokens_are_the_harness_s(ours: Any, tmp_path: Path, name: str) -> None:
    write_lines(tmp_path / f"{name}.jsonl", ROWS[name])
    questions = TASKS[name].load(str(tmp_path), None)
    pairs = encoded(ours._llm.tokenizer, questions, ours.max_length)
    for question, found in zip(questions, pairs, strict=True):
        for text, end, pair in zip(question.contexts, question.continuations, found, strict=True):
            assert (pair.context, pair.continuation) == ours._encode_pair(text, end)


def test_texts_of_all_kinds(ours: Any, theirs: Any) -> None:
    texts = [
        ("", " an owl"),
        ("", "<bos> an owl"),
        ("the fox \n ", "jumps over"),
        ("<bos>the fox", " jumps"),
        ("The quick brown fox jumps over the lazy dog. " * 40, " To be, or not to be."),
    ]
    requests = instances("loglikelihood", *texts)
    long = ours.tok_encode(texts[-1][0])
    assert len(long) > ours.max_length, "a context must be too long"
    assert_alike(ours, theirs, requests)


def test_rolling(ours: Any, theirs: Any) -> None:
    sentence = "To be, or not to be, that is the question. "
    requests = instances("loglikelihood_rolling", (sentence,), (sentence * 40,), ("",))
    found = ours.loglikelihood_rolling(requests)
    assert found == pytest.approx(theirs.loglikelihood_rolling(requests), rel=1e-5)
    assert found[2] == 0


def test_generation(ours: Any, theirs: Any) -> None:
    options: list[dict[str, Any]] = [
        {"max_gen_toks": 12},
        {"max_gen_toks": 20, "until": ["e"]},
        {"max_gen_toks": 9, "until": "o", "do_sample": False},
        {"max_gen_toks": 9, "until": [], "do_sample": False, "temperature": 0.0},
        {"max_gen_toks": 200},
    ]
    texts = ["The quick brown", "To be", "an owl", "fox", "The lazy dog. " * 60]
    requests = instances("generate_until", *zip(texts, options, strict=True))
    found = ours.generate_until(requests)
    assert found == theirs.generate_until(requests)
    assert len(set(map(len, found))) > 1 and all(found)


def test_sampling_is_asked_for() -> None:
    from suffice.eval.lm_eval import sampling

    greedy = sampling({"until": ["\n", ""]}, 7)
    assert (greedy.temperature, greedy.max_tokens, greedy.stops) == (0, 7, ("\n",))
    assert sampling({"do_sample": True}, 7).temperature == 1
    assert sampling({"do_sample": False, "temperature": 0.5}, 7).temperature == 0
    drawn = sampling({"temperature": 0.5, "top_p": 0.9, "seed": 3, "max_tokens": 2}, 7)
    assert (drawn.temperature, drawn.top_p, drawn.seed, drawn.max_tokens) == (0.5, 0.9, 3, 2)
    for options, message in (
        ({"num_beams": 4}, "unknown generation option 'num_beams'"),
        ({"top_pp": 0.5}, "Did you mean 'top_p'"),
        ({"do_sample": True, "temperature": 0.0}, "give a temperature above 0"),
        ({"temperature": -1.0, "do_sample": True}, "temperature=-1.0: must be"),
    ):
        with pytest.raises(InputError, match=message):
            sampling(options, 7)


def test_a_conversation(ours: Any, theirs: Any) -> None:
    talk = [{"role": "user", "content": "an owl?"}]
    answered = [*talk, {"role": "assistant", "content": "an"}]
    assert ours.apply_chat_template(talk) == theirs.apply_chat_template(talk)
    assert ours.apply_chat_template(answered, False) == theirs.apply_chat_template(answered, False)
    assert ours.chat_template(True) == theirs.chat_template(True)
    assert "/" not in ours.tokenizer_name


def test_answers_are_stored(ours: Any, tmp_path: Path) -> None:
    from lm_eval.api.model import CachingLM

    requests = instances("loglikelihood", ("the fox", " jumps"), ("", "an owl"))
    stored = CachingLM(ours, str(tmp_path / "answers.db"))
    found = stored.loglikelihood(requests)
    assert [ours.cache_hook.dbdict[key] for key in ours.cache_hook.dbdict] == found
    assert stored.loglikelihood(requests) == found


def test_bad_options(checkpoint: Path, ours: Any) -> None:
    for options, message in (
        ({"atention": "exact"}, "Did you mean 'attention'"),
        ({"mode": "decod"}, "Did you mean 'decode'"),
        ({"batch_size": "auto"}, "batch_size=auto: must be a whole number"),
        ({"quantization": "int5"}, "int8"),
    ):
        with pytest.raises(InputError, match=message):
            suffice_model(str(checkpoint), **options)
    (request,) = instances("generate_until", ("an owl", {"max_gen_toks": 256}))
    with pytest.raises(InputError, match=r"must be less than the context length, 256"):
        ours.generate_until([request])


@pytest.fixture
def harness(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], int]:
    """Run the harness's command, with a task on rows of a file, and return its exit code."""
    import lm_eval.tasks

    from suffice.eval.lm_eval import main

    yaml = Path(lm_eval.tasks.__file__).parent / YAML["piqa"]
    rows = write_lines(tmp_path / "rows.jsonl", PIQA)
    (tmp_path / "piqa_here.yaml").write_text(
        f"include: {yaml}\ntask: piqa_here\ndataset_path: json\ntraining_split: null\n"
        f"dataset_kwargs:\n  cache_dir: {tmp_path}\n  data_files:\n    validation: {rows}\n"
    )
    # It would read thousands of definitions first, for half a minute
    manager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)

    def run(model_args: str) -> int:
        model = ["--model", "suffice", "--model_args", f"pretrained={checkpoint},{model_args}"]
        task = ["--tasks", "piqa_here", "--include_path", str(tmp_path)]
        monkeypatch.setattr(
            sys, "argv", ["lm_eval", *model, *task, "--output_path", str(tmp_path / "found")]
        )
        return main()

    return run


def test_the_command(harness: Callable[[str], int], tmp_path: Path, ours: Any) -> None:
    assert harness("dtype=float32,max_model_len=256,attention=exact,growth=bmc:rows=64") == 0
    (file,) = (tmp_path / "found").rglob("results_*.json")
    found = json.loads(file.read_text())["results"]["piqa_here"]
    assert [found["acc,none"], found["acc_norm,none"]] == accuracies(ours, PIQA, tmp_path)


def test_the_command_complains_in_one_line(harness: Callable[[str], int], capsys: Any) -> None:
    assert harness("policy=ful") == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err and not said.out
    assert said.err.splitlines()[-1].startswith("suffice: error: unknown policy 'ful'")
