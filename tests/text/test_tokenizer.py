from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

import tiny
from suffice.errors import InputError
from suffice.text.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "",
    " ",
    "The quick brown fox",
    "  two spaces,  and\n\nlines\t.",
    "café 日本語 😀👩‍👧 12345",
    "<|user|>hi<|end|>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tokenizer"), "llama", tokenizer=True)


@pytest.fixture(scope="module")
def byte_level(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(sentencepiece_file(tmp_path_factory.mktemp("spm") / "x.gguf"))


def sentencepiece_file(path: Path, **flags: bool) -> Path:
    """Write a GGUF file with a small sentencepiece vocabulary: bytes, letters and a few words."""
    control, defined, byte, normal = 3, 4, 6, 1
    words = ["▁▁", "▁", "a", "b", "t", "h", "e", "th", "the", "▁t", "▁the", "he", "▁a", "ab", "ea"]
    pieces = [("<unk>", control), ("<s>", control), ("</s>", control), ("\n\n", defined)]
    pieces += [(f"<0x{value:02X}>", byte) for value in range(256)]
    pieces += [(word, normal) for word in words]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _ in pieces])
    writer.add_token_scores([-float(index) for index in range(len(pieces))])
    writer.add_token_types([kind for _, kind in pieces])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_file(folder: Path, path: Path, pre: str, **more: Any) -> Path:
    """Write the tokenizer of a directory as GGUF metadata, with `more` keys."""
    data = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    specials = {token["content"] for token in data["added_tokens"]}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token in specials else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in data["model"]["merges"]])
    writer.add_eos_token_id(2)
    for key, value in more.items():
        getattr(writer, f"add_{key}")(value)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_encode_and_decode(text: str, folder: Path, byte_level: Tokenizer) -> None:
    tokens = byte_level.encode(text)
    assert tokens == Backend.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert byte_level.decode(tokens) == text


def test_other_threads_go_on_while_a_long_text_is_encoded(
    folder: Path, byte_level: Tokenizer
) -> None:
    text = "The quick brown fox. " * 50_000
    turns, seen, found = 0, [], []

    def encode() -> None:
        seen.append(turns)
        found.append(byte_level.encode(text))
        seen.append(turns)

    thread = threading.Thread(target=encode)
    thread.start()
    while thread.is_alive():
        turns += 1
    assert seen[1] - seen[0] > 10_000
    assert found[0] == Backend.from_file(str(folder / "tokenizer.json")).encode(text).ids


def test_special_tokens_can_be_skipped(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("<|user|>hi<|end|>")
    assert byte_level.decode(tokens, skip_special=True) == "hi"


def test_chat(byte_level: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = byte_level.chat(messages, add_generation_prompt=True)
    assert byte_level.decode(tokens) == "<|user|>hi<|end|><|assistant|>"
    assert byte_level.has_chat_template


def test_chat_without_a_template_and_with_a_strict_one(
    folder: Path, tmp_path: Path, sentencepiece: Tokenizer
) -> None:
    assert not sentencepiece.has_chat_template
    with pytest.raises(InputError, match=r"^the model has no chat template; give a plain prompt$"):
        sentencepiece.chat([{"role": "user", "content": "a"}], add_generation_prompt=True)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    strict = load_tokenizer(tmp_path)
    with pytest.raises(
        InputError, match=r"^the chat template refuses the conversation: roles must alternate$"
    ):
        strict.chat([{"role": "user", "content": "a"}], add_generation_prompt=True)


def test_end_tokens(folder: Path, byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.eos_ids == {2}
    assert sentencepiece.eos_ids == {2}
    generation = folder / "generation_config.json"
    before = generation.read_text()
    generation.write_text('{"eos_token_id": [5, 6]}')
    assert load_tokenizer(folder).eos_ids == {2, 5, 6}
    generation.write_text(before)


@given(st.text(max_size=40))
def test_a_stream_is_the_whole_text(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        tokens = tokenizer.encode(text, special=False)
        stream = tokenizer.stream(skip_special=False)
        pieces = [stream.push(token) for token in tokens]
        pieces.append(stream.flush())
        assert "".join(pieces) == tokenizer.decode(tokens)
        if "\N{REPLACEMENT CHARACTER}" not in text:
            assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_stream_holds_back_half_characters(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("a𠀀b")
    stream = byte_level.stream()
    pieces = [stream.push(token) for token in tokens]
    assert pieces[0] == "a" and "𠀀" in pieces and pieces[-1] == "b"
    half = byte_level.stream()
    assert [half.push(token) for token in tokens[:3]] == ["a", "", ""]
    assert half.flush() == "\N{REPLACEMENT CHARACTER}"


def test_a_stream_of_broken_characters_goes_on(byte_level: Tokenizer) -> None:
    broken = byte_level.encode("ü")[-1:]
    stream = byte_level.stream()
    text = "".join(stream.push(token) for token in broken * 40)
    assert 20 <= len(text) < 40
    assert text + stream.flush() == byte_level.decode(broken * 40)


def slow_stream(tokenizer: Tokenizer, tokens: list[int], *, skip_special: bool) -> list[str]:
    """Return the pieces of a stream that decodes its last tokens for each token."""
    pieces, context, sent = [], 0, 0

    def text(start: int, end: int) -> str:
        return tokenizer.decode(tokens[start:end], skip_special=skip_special)

    for count in range(1, len(tokens) + 2):
        end = min(count, len(tokens))
        if count <= len(tokens) and text(context, end).endswith("\N{REPLACEMENT CHARACTER}"):
            if end - sent < 16:
                pieces.append("")
                continue
            end -= 4  # no longer than a character
        known, whole = text(context, sent), text(context, end)
        pieces.append(whole[len(known) :])
        context, sent = (sent if len(whole) > len(known) else context), end
    return pieces


@pytest.mark.parametrize("skip_special", [True, False])
def test_streams_of_random_tokens(
    byte_level: Tokenizer, sentencepiece: Tokenizer, skip_special: bool
) -> None:
    rng = random.Random(5)
    for tokenizer in (byte_level, sentencepiece):
        size = len(tokenizer.vocabulary())
        few = [rng.randrange(size) for _ in range(12)] + [0, 1, 2]
        for index in range(150):
            pool = few if index % 3 == 0 else range(size)
            tokens = [rng.choice(pool) for _ in range(rng.randint(1, 90))]
            stream = tokenizer.stream(skip_special=skip_special)
            pieces = [*map(stream.push, tokens), stream.flush()]
            expected = slow_stream(tokenizer, tokens, skip_special=skip_special)
            assert "".join(pieces) == "".join(expected)
            # Tokens without text count towards those after which broken text is shown.
            assert skip_special or pieces == expected


def test_the_pair_of_the_best_score_is_joined_first(sentencepiece: Tokenizer) -> None:
    _, *tokens = sentencepiece.encode("thea")
    assert [sentencepiece.decode([token]) for token in tokens] == ["the", "a"]


def test_a_space_survives_tokens_without_text(sentencepiece: Tokenizer) -> None:
    start, the, *rest = sentencepiece.encode("the ab")
    tokens = [the, *[start] * 20, *rest]
    stream = sentencepiece.stream()
    assert "".join([*map(stream.push, tokens), stream.flush()]) == "the ab"


def test_sentencepiece_of_a_file(sentencepiece: Tokenizer, tmp_path: Path) -> None:
    spell = sentencepiece.spelled
    assert spell(sentencepiece.encode("the ab")) == ["<s>", "▁the", "▁a", "b"]
    assert spell(sentencepiece.encode("a\n\nb", special=False)) == ["▁a", "\n\n", "b"]
    assert spell(sentencepiece.encode("ü", special=False)) == ["▁", "<0xC3>", "<0xBC>"]
    assert sentencepiece.decode(sentencepiece.encode("the ab", special=False)) == "the ab"
    flags = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    bare = load_tokenizer(sentencepiece_file(tmp_path / "bare.gguf", **flags))
    assert spell(bare.encode("the  ab")) == ["the", "▁▁", "ab", "</s>"]
    assert bare.decode(bare.encode(" the", special=False)) == " the"


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_of_a_file(
    text: str, folder: Path, byte_level: Tokenizer, tmp_path: Path
) -> None:
    loaded = load_tokenizer(byte_level_file(folder, tmp_path / "x.gguf", "gpt-2"))
    assert loaded.encode(text) == byte_level.encode(text)
    assert loaded.eos_ids == {2, 6}  # and <|end|>, known to end a turn
    tokens = loaded.chat([{"role": "user", "content": text}], add_generation_prompt=False)
    assert tokens == byte_level.encode(text)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["x", " 1234½", "'s"]),
        ("smollm", ["x", " ", "1", "2", "3", "4", "½", "'s"]),
        ("refact", ["x", " ", "1", "2", "3", "4", "½", "'s"]),
        ("dbrx", ["x", " ", "123", "4½", "'s"]),
        ("smaug-bpe", ["x", " ", "123", "4½", "'s"]),
        ("falcon-h1", ["x", " ", "123", "4½", "'s"]),
        ("lfm2", ["x", " ", "123", "4½", "'s"]),
        ("llama-bpe", ["x", " ", "123", "4½", "'s"]),
        ("pixtral", ["x", " ", "123", "4½", "'s"]),
        ("qwen2", ["x", " ", "1", "2", "3", "4", "½", "'s"]),
        ("qwen35", ["x", " ", "1", "2", "3", "4", "½", "'s"]),
    ],
)
def test_how_text_is_split(pre: str, pieces: list[str], folder: Path, tmp_path: Path) -> None:
    loaded = load_tokenizer(byte_level_file(folder, tmp_path / "x.gguf", pre))
    splitter: Any = loaded._backend.pre_tokenizer
    text = "x 1234½'s"
    assert [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)] == pieces


def test_marks_belong_to_letters_in_later_files(folder: Path, tmp_path: Path) -> None:
    """The text is composed first, as far as there are characters for it."""
    text = "a\u0301 q\u0323x"
    for pre, pieces in (("qwen2", ["á", " q", "\u0323x"]), ("qwen35", ["á", " q\u0323x"])):
        backend: Any = load_tokenizer(byte_level_file(folder, tmp_path / "x.gguf", pre))._backend
        composed = backend.normalizer.normalize_str(text)
        spans = backend.pre_tokenizer.pre_tokenize_str(composed)
        assert [composed[start:end] for _, (start, end) in spans] == pieces, pre


@pytest.mark.parametrize("pre", ["falcon-h1", "lfm2", "llama-bpe", "pixtral"])
def test_texts_begin_with_a_token_unless_the_file_says_no(
    pre: str, folder: Path, tmp_path: Path
) -> None:
    loaded = load_tokenizer(byte_level_file(folder, tmp_path / "x.gguf", pre, bos_token_id=1))
    bare = loaded.encode("ab", special=False)
    assert loaded.encode("ab") == [1, *bare]
    for more in ({}, {"bos_token_id": 1, "add_bos_token": False}):
        path = byte_level_file(folder, tmp_path / "y.gguf", pre, **more)
        assert load_tokenizer(path).encode("ab") == bare


def test_refused_tokenizers(folder: Path, tmp_path: Path) -> None:
    path = byte_level_file(folder, tmp_path / "x.gguf", "gpt2")
    with pytest.raises(InputError) as caught:
        load_tokenizer(path)
    assert str(caught.value) == (
        f"unknown 'tokenizer.ggml.pre' in {path} 'gpt2'. Did you mean 'gpt-2'? "
        "Known: dbrx, deepseek-r1-qwen, falcon-h1, gpt-2, lfm2, llama-bpe, olmo, phi-2, pixtral, "
        "qwen2, qwen35, refact, smaug-bpe, smollm, stablelm2"
    )
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match="has no tokenizer: the keys"):
        load_tokenizer(path)


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    tiny.make(tmp_path, "llama")
    with pytest.raises(InputError) as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: the tokenizer cannot be loaded: ")
    assert "\n" not in str(caught.value)


BLOCKED = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from suffice.text.tokenizer import Tokenizer, load_tokenizer
from suffice.cli import chat
for model in sys.argv[1:]:
    tokenizer = load_tokenizer(model)
    tokens = tokenizer.encode("café 😀")
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, tokens), stream.flush()]) == "café 😀"
    assert "jinja2" not in sys.modules
    tokenizer = Tokenizer.restored(*tokenizer.stored())
    print(tokenizer.decode(tokenizer.chat([{"role": "user", "content": "hi"}],
          add_generation_prompt=False)))
    del sys.modules["jinja2"]
"""


def test_nothing_needs_pytorch_or_transformers(folder: Path, tmp_path: Path) -> None:
    file = byte_level_file(folder, tmp_path / "x.gguf", "gpt-2")
    found = subprocess.run(
        [sys.executable, "-c", BLOCKED, folder, file], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "<|user|>hi<|end|>\nhi\n"), found.stderr


def test_what_is_no_text_is_refused(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece):
        with pytest.raises(InputError) as error:
            tokenizer.encode("caf\udce9")
        assert str(error.value) == ("the text is not valid text (UTF-8): byte 0xe9 at character 4")
