"""What `LLM` promises, on a model that is a function of the history.

Also tests accepting.py and progress.py.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fake_engine import EOS, PIECES, fake_llm, mixed, runner_of, scripted
from suffice import SamplingParams
from suffice.arrays import log_softmax

GREEDY = SamplingParams(temperature=0, max_tokens=8)
LONG = SamplingParams(temperature=1, max_tokens=12, seed=3, ignore_eos=True)


def tokens_of(outputs: list[Any]) -> list[tuple[int, ...]]:
    return [sample.token_ids for output in outputs for sample in output.outputs]


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab c", (3, 2, 4)),
        ([3, 2, 4], (3, 2, 4)),
        ({"prompt_token_ids": [3, 2, 4]}, (3, 2, 4)),
        ({"prompt": "ab c"}, (3, 2, 4)),
        ([[3, 2, 4]], (3, 2, 4)),
        (["ab c"], (3, 2, 4)),
    ],
)
def test_every_form_of_a_prompt_gives_the_same_tokens(prompt: Any, ids: tuple[int, ...]) -> None:
    (output,) = fake_llm().generate(prompt, GREEDY)
    assert output.prompt_token_ids == ids
    assert tokens_of([output]) == tokens_of(fake_llm().generate([list(ids)], GREEDY))
    assert output.finished


def test_results_come_in_the_order_of_the_prompts() -> None:
    llm = fake_llm(max_num_seqs=2)
    prompts = ["x", "ab", "c", "d", "abc"]
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=n) for n in (9, 1, 5, 2, 7)])
    assert [output.prompt for output in outputs] == prompts
    assert [output.request_id for output in outputs] == ["0", "1", "2", "3", "4"]


def test_end_of_sequence_stops_and_gives_no_text() -> None:
    (output,) = fake_llm(scripted(3, 4)).generate([2], GREEDY)
    (sample,) = output.outputs
    assert (sample.text, sample.token_ids) == ("abc", (3, 4, EOS))
    assert (sample.finish_reason, sample.stop_reason) == ("stop", None)


def test_end_of_sequence_can_be_ignored() -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    (output,) = fake_llm(scripted(3)).generate([2], params)
    assert output.outputs[0].token_ids == (3, EOS, EOS, EOS)
    assert output.outputs[0].finish_reason == "length"


def test_special_tokens_appear_if_asked_for() -> None:
    params = SamplingParams(
        temperature=0, skip_special_tokens=False, include_stop_str_in_output=True
    )
    (output,) = fake_llm(scripted(3, 1)).generate([2], params)
    assert output.outputs[0].text == "ab<other><eos>"


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abx")])
def test_a_stop_token_ends_the_sample(include: bool, text: str) -> None:
    params = SamplingParams(temperature=0, stop_token_ids=[8], include_stop_str_in_output=include)
    (output,) = fake_llm(scripted(3, 8, 4)).generate([2], params)
    (sample,) = output.outputs
    assert (sample.text, sample.token_ids, sample.stop_reason) == (text, (3, 8), 8)


@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "xEND")])
def test_a_stop_string_over_token_boundaries_ends_the_sample(include: bool, text: str) -> None:
    params = SamplingParams(temperature=0, stop="END", include_stop_str_in_output=include)
    (output,) = fake_llm(scripted(8, 12, 13, 6, 4)).generate([2], params)  # "xENd": no stop
    assert output.outputs[0].text == "xENdc"
    (output,) = fake_llm(scripted(8, 12, 11, 4)).generate([2], params)  # "xEEND": one
    assert output.outputs[0].text == text.replace("x", "xE")
    (sample,) = fake_llm(scripted(8, 11, 4)).generate([2], params)[0].outputs
    assert (sample.text, sample.finish_reason, sample.stop_reason) == (text, "stop", "END")


def test_streamed_text_is_never_taken_back() -> None:
    params = SamplingParams(temperature=0, stop=["abcab", "cd"], max_tokens=10)
    rule = scripted(8, 3, 4, 3, 8)
    seen = []
    for delta, output in fake_llm(rule).stream([2], params):
        seen.append(delta)
        assert "".join(seen) == output.outputs[0].text
    assert seen[:4] == ["x", "", "", ""]
    assert output.outputs[0].text == "x"
    assert output.finished


def test_streamed_text_adds_up_to_the_generated_one() -> None:
    params = SamplingParams(temperature=1, seed=5, max_tokens=20, ignore_eos=True, stop=["xx"])
    (whole,) = fake_llm().generate("ab", params)
    pieces = list(fake_llm().stream("ab", params))
    assert "".join(delta for delta, _ in pieces) == whole.outputs[0].text
    assert pieces[-1][1].outputs == whole.outputs


def test_min_tokens_holds_off_every_stop() -> None:
    params = SamplingParams(
        temperature=0, min_tokens=3, stop=["ab"], stop_token_ids=[4], max_tokens=6
    )
    (output,) = fake_llm(scripted(3, EOS, 4, 8, 3, 8)).generate([2], params)
    (sample,) = output.outputs
    assert sample.token_ids[0] == 3, "text of the first tokens does not stop"
    assert not {EOS, 4} & set(sample.token_ids[:3]), "stop tokens cannot be chosen yet"
    assert sample.token_ids[3:] == (8, 3)
    assert (sample.finish_reason, sample.stop_reason) == ("stop", "ab")


def test_max_tokens_and_the_context_end_with_length() -> None:
    llm = fake_llm()
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    (output,) = llm.generate([[3] * 60], params)
    assert len(output.outputs[0].token_ids) == 4
    assert output.outputs[0].finish_reason == "length"
    (output,) = llm.generate([[3] * 60], SamplingParams(max_tokens=1))
    assert len(output.outputs[0].token_ids) == 1


def test_each_request_of_a_batch_finishes_on_its_own() -> None:
    llm = fake_llm()
    lengths = [1, 7, 3, 5]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate(["x"] * 4, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert runner_of(llm).batches == [3, 3, 2, 2, 1, 1]
    assert runner_of(llm).open_sequences == []


@pytest.mark.parametrize("size", [1, 2, 5])
def test_same_seed_same_tokens_whatever_the_batch_and_order(size: int) -> None:
    prompts = [[3], [4, 5], [6, 7, 8], [9], [3, 3]]
    params = [
        SamplingParams(seed=seed, max_tokens=12, ignore_eos=True, temperature=0.8, **options)
        for seed, options in enumerate(
            [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.1}, {"presence_penalty": 1.0}]
        )
    ]
    alone = [fake_llm().generate([p], s)[0] for p, s in zip(prompts, params, strict=True)]
    order = random.Random(size).sample(range(5), 5)
    llm = fake_llm(max_num_seqs=size)
    batch = llm.generate([prompts[i] for i in order], [params[i] for i in order])
    assert tokens_of(batch) == tokens_of([alone[i] for i in order])


def test_a_request_without_a_seed_takes_the_next_of_the_engine() -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    first, second = tokens_of(fake_llm().generate(["x", "x"], params))
    assert first != second
    assert tokens_of(fake_llm().generate(["x", "x"], params)) == [first, second]
    assert tokens_of(fake_llm(seed=1).generate("x", params)) != [first]
    one, other = (tokens_of(fake_llm(seed=None).generate("x", params)) for _ in range(2))
    assert one != other


def test_several_samples_share_one_run_of_the_prompt() -> None:
    llm = fake_llm()
    (output,) = llm.generate("abc", SamplingParams(n=4, seed=9, max_tokens=10, ignore_eos=True))
    assert runner_of(llm).prefilled == [[5]]
    assert [sample.index for sample in output.outputs] == [0, 1, 2, 3]
    assert len({sample.token_ids for sample in output.outputs}) > 1
    params = SamplingParams(n=1, seed=9, max_tokens=10, ignore_eos=True)
    (alone,) = fake_llm().generate("abc", params)
    assert alone.outputs[0].token_ids == output.outputs[0].token_ids
    assert runner_of(llm).open_sequences == []


def test_logprobs_are_those_of_the_model() -> None:
    params = SamplingParams(
        max_tokens=3, logprobs=2, temperature=0.5, presence_penalty=1.0, seed=1, ignore_eos=True
    )
    (output,) = fake_llm().generate([3, 4], params)
    (sample,) = output.outputs
    history, total = [3, 4], 0.0
    assert sample.logprobs is not None
    for token, entry in zip(sample.token_ids, sample.logprobs, strict=True):
        expected = log_softmax(mixed(history).astype(np.float64))
        best = (-expected).argsort().tolist()
        assert set(entry) == {token, *best[:2]}
        for ident, logprob in entry.items():
            assert logprob.logprob == pytest.approx(expected[ident].item(), abs=1e-5)
            assert logprob.rank == best.index(ident) + 1
            assert logprob.decoded_token == PIECES[ident]
        total += entry[token].logprob
        history.append(token)
    assert sample.cumulative_logprob == pytest.approx(total)


def test_logprobs_are_absent_unless_asked_for() -> None:
    (sample,) = fake_llm().generate("x", GREEDY)[0].outputs
    assert sample.logprobs is None
    assert sample.cumulative_logprob is None
    (sample,) = fake_llm().generate("x", SamplingParams(logprobs=0, max_tokens=2))[0].outputs
    assert [set(entry) for entry in sample.logprobs or ()] == [{t} for t in sample.token_ids]


def test_bad_words_do_not_appear() -> None:
    (output,) = fake_llm(scripted(3, 4, 8)).generate(
        [2], SamplingParams(temperature=0, bad_words=["x"], max_tokens=3)
    )
    assert 8 not in output.outputs[0].token_ids
    params = SamplingParams(temperature=0, bad_words=["dx"], max_tokens=3)
    (output,) = fake_llm(scripted(8, 6, 8)).generate([2], params)
    assert output.outputs[0].token_ids[:2] == (8, 6), "either part alone is allowed"
    assert output.outputs[0].token_ids[2] != 8


def test_out_of_memory_in_a_step_loses_only_what_does_not_fit_alone() -> None:
    # 3 + 3 rows are in use before the third tokens are run; the seventh is the last there is.
    llm = fake_llm(memory=7)
    short = SamplingParams(max_tokens=3, ignore_eos=True)
    first, second = llm.generate([[3, 4], [5, 6]], [short, LONG])
    assert (first.error, first.outputs[0].finish_reason) == (None, "length")
    assert second.error == "request 1 needs 8 rows"
    assert second.outputs[0].finish_reason == "abort"
    assert len(second.outputs[0].token_ids) == 6, "what there is is kept"
    assert runner_of(llm).open_sequences == []
    (alone,) = fake_llm().generate([5, 6], LONG)
    assert second.outputs[0].token_ids == alone.outputs[0].token_ids[:6]


def test_out_of_memory_for_a_prompt_loses_only_that_request() -> None:
    llm = fake_llm(memory=20)
    outputs = llm.generate([[3], [4] * 40, [5]], GREEDY)
    assert [output.error for output in outputs] == [None, "request 1 needs 40 rows", None]
    assert [output.outputs[0].finish_reason == "abort" for output in outputs] == [
        False,
        True,
        False,
    ]
    assert outputs[1].finished
    assert runner_of(llm).memory == 20


def test_out_of_memory_for_one_of_several_samples_ends_the_request() -> None:
    llm = fake_llm(memory=10)
    (output,) = llm.generate([[4] * 4], SamplingParams(n=3, max_tokens=5))
    assert output.error == "request 0 needs 4 rows"
    assert [sample.finish_reason for sample in output.outputs] == ["abort"] * 3
    assert runner_of(llm).memory == 10


def test_logits_that_are_not_numbers_end_only_that_request() -> None:
    def rule(history: list[int]) -> Any:
        return mixed(history) * (float("nan") if history[0] == 3 and len(history) > 2 else 1)

    llm = fake_llm(rule)
    bad, good = llm.generate([[3], [4]], [LONG, LONG])
    assert bad.error == "the model's largest logit is nan: its weights may be damaged"
    assert len(bad.outputs[0].token_ids) == 2
    assert (good.error, good.outputs[0].finish_reason) == (None, "length")


def test_a_sample_without_a_token_ends_the_others_of_its_request_where_they_are() -> None:
    params = SamplingParams(n=2, seed=4, max_tokens=6, ignore_eos=True)
    whole = fake_llm().generate([4], params)[0].outputs
    first, second = whole[0].token_ids[0], whole[1].token_ids[0]
    assert first != second

    def rule(history: list[int]) -> Any:
        broken = history[1:2] == [first] and len(history) == 4
        return mixed(history) * (float("nan") if broken else 1)

    (output,) = fake_llm(rule).generate([4], params)
    assert [sample.finish_reason for sample in output.outputs] == ["abort", "abort"]
    assert [sample.token_ids for sample in output.outputs] == [s.token_ids[:3] for s in whole]


def test_no_token_left_ends_the_request() -> None:
    params = SamplingParams(allowed_token_ids=[EOS], min_tokens=1)
    (output,) = fake_llm().generate("x", params)
    assert output.error is not None
    assert output.error.startswith("no token is left to choose: ")


def test_an_interruption_ends_all_requests_and_the_engine_goes_on() -> None:
    llm = fake_llm()
    runner_of(llm).interrupt_after = 2
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x", "ab"], LONG)
    assert runner_of(llm).open_sequences == []
    assert tokens_of(llm.generate("x", LONG)) == tokens_of(fake_llm().generate("x", LONG))


def test_an_interrupted_stream_gives_its_memory_back() -> None:
    llm = fake_llm()
    runner_of(llm).interrupt_after = 2
    texts = []
    with pytest.raises(KeyboardInterrupt):
        for delta, _ in llm.stream("x", LONG):
            texts.append(delta)
    assert len(texts) == 3
    assert runner_of(llm).open_sequences == []


def test_leaving_a_stream_early_gives_its_memory_back() -> None:
    llm = fake_llm()
    stream = llm.stream("x", LONG)
    next(stream)
    assert len(runner_of(llm).open_sequences) == 1
    stream.close()  # type: ignore[attr-defined]
    assert runner_of(llm).open_sequences == []


def test_streams_and_batches_may_alternate() -> None:
    llm = fake_llm()
    stream = llm.stream("ab", LONG)
    next(stream)
    assert tokens_of(llm.generate("x", LONG)) == tokens_of(fake_llm().generate("x", LONG))
    last = list(stream)[-1][1]
    assert tokens_of([last]) == tokens_of(fake_llm().generate("ab", LONG))


def test_metrics_count_from_arrival() -> None:
    (output,) = fake_llm().generate("x", LONG)
    metrics = output.metrics
    assert metrics.first_token_seconds == metrics.queue_seconds + metrics.prefill_seconds > 0
    assert metrics.decode_seconds > 0
    assert output.num_cached_tokens == 0


def test_chat_takes_one_conversation_or_several() -> None:
    llm = fake_llm()
    talk = [{"role": "user", "content": "ab"}]
    (one,) = llm.chat(talk, GREEDY)
    assert one.prompt_token_ids == (3, 9, 12)
    many = llm.chat([talk, talk], GREEDY)
    assert tokens_of(many) == tokens_of([one, one])
    (bare,) = llm.chat(talk, GREEDY, add_generation_prompt=False)
    assert bare.prompt_token_ids == (3, 9)


def test_the_progress_bar_shows_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_llm().generate(["x", "ab"], LONG)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fake_llm().generate(["x", "ab"], LONG, use_tqdm=False)
    assert capsys.readouterr() == ("", "")
    fake_llm().generate(["x", "ab"], LONG)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2 requests" in shown.err
    assert "2/2 of prompts, 24 tokens" in shown.err
