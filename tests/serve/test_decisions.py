"""Closed questions with probabilities. Tests decisions.py and decision_forms.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

import embedders
from serving import Served, real
from suffice import LLM, SamplingParams
from suffice.serve.interfaces.decisions import confidence, expected

OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_cache_dtype": "float32"}
STATE = "My card was charged twice."
TEAMS = {"billing": "payments, refunds", "technical": "bugs", "sales": None}
LEVELS = ["calm", "annoyed", "angry"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedders.judge(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def judge(folder: Path) -> Iterator[Served]:
    with real(folder, **OPTIONS) as found:
        yield found


@pytest.fixture(scope="module")
def shares(folder: Path) -> Callable[..., list[float]]:
    """The probabilities of labels as the next token after what a model is asked."""
    llm = LLM(folder, threads=1, **OPTIONS)

    def of(asked: str, labels: str | list[str]) -> list[float]:
        text = (
            f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )
        tokens = llm.tokenizer.encode(text, special=False)
        ids = [llm.tokenizer.encode(label, special=False) for label in labels]
        assert {len(each) for each in ids} == {1}
        params = SamplingParams(max_tokens=1, logprobs=embedders.SPARE, temperature=1)
        (output,) = llm.generate([tokens], params, use_tqdm=False)
        (entry,) = output.outputs[0].logprobs or ()
        weights = [math.exp(entry[token].logprob) for (token,) in ids]
        return [weight / sum(weights) for weight in weights]

    return of


YES = f"{STATE}\n\nIs it urgent?\nAnswer with yes or no alone."
WHICH = (
    f"{STATE}\n\nWhich team?\nA: billing - payments, refunds\nB: technical - bugs\nC: sales\n"
    "Answer with the letter of one option alone."
)
HOW = (
    f"{STATE}\n\nHow angry?\n0: calm\n1: annoyed\n2: angry\n"
    "Answer with the number of one level alone."
)


def test_system_one(judge: Served, shares: Callable[..., list[float]]) -> None:
    questions = {
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "team": {"type": "choice", "instructions": "Which team?", "criteria": TEAMS},
        "mood": {"type": "score", "instructions": "How angry?", "criteria": LEVELS},
    }
    for path in ("/v1/systemone", "/systemone"):
        answer = judge.post(path, {"model": "tiny", "state": STATE, "questions": questions})
        assert answer.status_code == 200, answer.text
        answers = answer.json()["answers"]
        assert list(answers) == list(questions)
        urgent, team, mood = answers.values()
        yes, _ = shares(YES, ["yes", "no"])
        assert urgent == {"type": "noul", "noul": pytest.approx(yes, abs=1e-6)}
        wanted = shares(WHICH, "ABC")
        assert list(team["probabilities"]) == list(TEAMS)
        assert list(team["probabilities"].values()) == pytest.approx(wanted, abs=1e-6)
        assert team["choice"] == list(TEAMS)[wanted.index(max(wanted))]
        assert team["confidence"] == pytest.approx(confidence(wanted), abs=1e-6)
        wanted = shares(HOW, "012")
        assert list(mood["probabilities"].values()) == pytest.approx(wanted, abs=1e-6)
        assert mood["legend"] == {"0": "calm", "1": "annoyed", "2": "angry"}
        assert mood["score"] == pytest.approx(expected(wanted), abs=1e-6)
        usage = answer.json()["usage"]
        assert usage["input_tokens"] > 0 and usage["output_tokens"] == 0


def test_the_openai_client(judge: Served, shares: Callable[..., list[float]]) -> None:
    client = openai.OpenAI(base_url=f"{judge.url}/v1", api_key="none", max_retries=0)
    teams = [
        {"value": name, **({} if text is None else {"description": text})}
        for name, text in TEAMS.items()
    ]
    questions: Any = [
        {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
        {"type": "choice", "instructions": "Which team?", "choices": teams},
        {"type": "score", "instructions": "How angry?", "levels": [{"label": e} for e in LEVELS]},
    ]
    parts = [{"type": "input_text", "text": STATE}]
    for given in (STATE, [{"role": "user", "content": parts}]):
        decision = client.decisions.create(model="tiny", input=given, questions=questions)
        urgent, team, mood = decision.answers
        assert (urgent.type, team.type, mood.type) == ("predicate", "choice", "score")
        assert (urgent.name, team.name) == ("urgent", None)
        assert urgent.probability == pytest.approx(shares(YES, ["yes", "no"])[0], abs=1e-6)
        wanted = shares(WHICH, "ABC")
        assert [each.probability for each in team.probabilities] == pytest.approx(wanted, abs=1e-6)
        assert team.choice == list(TEAMS)[wanted.index(max(wanted))]
        wanted = shares(HOW, "012")
        assert [(each.value, each.label) for each in mood.probabilities] == list(enumerate(LEVELS))
        assert mood.score == pytest.approx(expected(wanted), abs=1e-6)
        assert decision.usage.total_tokens == decision.usage.input_tokens > 0


def test_a_text_is_read_once_for_all_questions(judge: Served) -> None:
    asked = [{"type": "predicate", "instructions": f"{at}?"} for at in range(5)]
    state = "The quick brown fox jumps over the lazy dog. " * 20
    answer = judge.post("/v1/decisions", {"input": state, "questions": asked}).json()
    details = answer["usage"]["input_tokens_details"]
    share = details["cached_tokens"] / answer["usage"]["input_tokens"]
    assert 0.6 < share < 0.8, "all but the first find it"


def test_what_a_model_is_shown(judge: Served, shares: Callable[..., list[float]]) -> None:
    """JSON as JSON, both sides of a question, booleans, and who said what."""
    asked = {
        "state": {"a": "é", "b": [1]},
        "questions": {
            "q": {"type": "noul", "criteria": {"true": "it is", "false": {"not": 1}}},
        },
    }
    found = judge.post("/v1/systemone", asked).json()["answers"]["q"]["noul"]
    text = '{"a": "é", "b": [1]}\n\n\nyes: it is\nno: {"not": 1}\nAnswer with yes or no alone.'
    assert found == pytest.approx(shares(text, ["yes", "no"])[0], abs=1e-6)
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    choices = [{"value": True}, {"value": "true"}]
    question = {"type": "choice", "instructions": parts("Which", "one?"), "choices": choices}
    answer = judge.post("/v1/decisions", {"input": talk, "questions": [question]}).json()
    text = "user: Hi\n\nassistant: Ho\n\nWhich\none?\nA: true\nB: true\n"
    wanted = shares(text + "Answer with the letter of one option alone.", "AB")
    (found,) = answer["answers"]
    assert [each["probability"] for each in found["probabilities"]] == pytest.approx(
        wanted, abs=1e-6
    )
    assert [each["value"] for each in found["probabilities"]] == [True, "true"]


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "input_text", "text": text} for text in texts]


def question(**fields: Any) -> dict[str, Any]:
    return {"input": "a", "questions": [{"instructions": "b", **fields}]}


def named(**fields: Any) -> dict[str, Any]:
    return {"state": "a", "questions": {"q": fields}}


TWO = [{"value": "a"}, {"value": "b"}]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"questions": []}, "input", "input: is required"),
    ({"input": "a", "questions": []}, "questions", "at least 1 item"),
    (
        question(type="box"),
        "questions[0]",
        "the type 'box' must be one of predicate, choice, score",
    ),
    (question(), "questions[0]", "the type None must be one of predicate"),
    (
        question(type="choice", choices=TWO[:1]),
        "questions[0]",
        "choices: must have at least 2 items",
    ),
    (question(type="choice", choices=TWO * 2), "questions[0]", "two choices are the same"),
    (question(type="score", levels=[{"label": "a"}] * 11), "questions[0]", "at most 10 items"),
    (question(type="predicate", choices=TWO), "questions[0]", "unknown field 'choices'"),
    (
        {"input": [{"type": "function_call"}], "questions": [{"type": "predicate"}]},
        "questions[0]",
        "instructions: is required",
    ),
    (
        question(type="predicate")
        | {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0]",
        "must be a text, or parts of type 'input_text' with a 'text'",
    ),
    (
        question(type="predicate") | {"input": [{"type": "function_call", "role": "a"}]},
        "input[0]",
        "must be a message with a role",
    ),
    (named(type="predicate"), "questions.q", "must be one of noul, choice, score"),
    (named(type="choice", criteria={"a": None}), "questions.q", "criteria: "),
    (named(type="noul", criteria={"maybe": "b"}), "questions.q", "unknown field 'criteria.maybe'"),
    (named(type="score", criteria=["a", 3]), "questions.q", "criteria.1"),
    ({"questions": {"q": {"type": "noul"}}}, "state", "state: is required"),
]


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED, ids=str)
def test_what_is_refused(judge: Served, fields: Any, param: str, message: str) -> None:
    openais = "input" in fields or isinstance(fields["questions"], list)
    answer = judge.post("/v1/decisions" if openais else "/v1/systemone", fields)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert message in error["message"] and error["param"] == param


def many(count: int) -> dict[str, Any]:
    return named(type="choice", criteria={f"option {at}": None for at in range(count)})


def test_as_many_options_as_there_are_labels(judge: Served, folder: Path, tmp_path: Path) -> None:
    """Letters, then pairs of letters that are tokens."""
    found = judge.post("/v1/systemone", many(26)).json()["answers"]["q"]["probabilities"]
    assert len(found) == 26 and sum(found.values()) == pytest.approx(1)
    error = judge.post("/v1/systemone", many(27)).json()["error"]
    assert error["message"] == (
        "questions.q: 27 options given; this model has tokens for 26 labels"
    )
    more = embedders.judge(tmp_path)
    tokenizer = Tokenizer.from_file(str(more / "tokenizer.json"))
    tokenizer.add_tokens(["AC", "BA"])
    tokenizer.save(str(more / "tokenizer.json"))
    with real(more, **OPTIONS) as server:
        found = server.post("/v1/systemone", many(28)).json()["answers"]["q"]["probabilities"]
        assert len(found) == 28
        assert "for 28 labels" in server.post("/v1/systemone", many(29)).json()["error"]["message"]


def test_models_that_cannot(words: Path, tmp_path: Path) -> None:
    """Where yes is no token, and one that always thinks."""
    asked = named(type="noul", instructions="b")
    with real(words, **OPTIONS) as server:
        error = server.post("/v1/systemone", asked).json()["error"]
        assert "2 options given; this model has tokens for 0 labels" in error["message"]
    folder = embedders.judge(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    with real(folder, **OPTIONS) as server:
        error = server.post("/v1/systemone", asked).json()["error"]
        assert error["message"] == (
            "this model thinks before it answers, and its template has no switch for that"
        )


def test_confidence() -> None:
    assert confidence([0.25] * 4) == 0 and confidence([0.0, 1.0]) == 1
    assert expected([0.5, 0, 0.5]) == 1
