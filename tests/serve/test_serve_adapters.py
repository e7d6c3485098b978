"""A real engine with adapters: clients name one as their model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import adapters
from commands import Cli
from serving import Served, served
from suffice import LLM, SamplingParams
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.errors import OptionError
from suffice.serve.settings import ENGINE, Settings

PROMPT = "To be, or not to be, that is the question. " * 4
FIELDS = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def own(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter") / "own"
    return adapters.write(folder, words, adapters.TARGETS["llama"])


@pytest.fixture(scope="module")
def server(words: Path, own: Path) -> Iterator[Served]:
    given = EngineOptions(model=str(words), threads=1, adapters=(f"own={own}",))
    options = engine_options(ModelFlags(options=given), 8)
    with served(words, engine=ENGINE, options=options, model="tiny") as found:
        yield found


def test_a_request_names_an_adapter_as_its_model(server: Served, words: Path, own: Path) -> None:
    llm = LLM(words, threads=1, adapters={"own": own})
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    texts = {}
    for name, adapter in (("tiny", None), ("own", "own"), ("tiny", None), ("own", "own")):
        found = server.post("/v1/completions", {"model": name, **FIELDS}).json()
        (output,) = llm.generate([PROMPT], params, adapter=adapter)
        assert found["model"] == name
        assert found["choices"][0]["text"] == output.outputs[0].text
        texts[name] = output.outputs[0].text
    assert texts["tiny"] != texts["own"]
    chat = server.chat("hello", model="own", max_tokens=2)
    assert chat.status_code == 200 and chat.json()["model"] == "own"


def test_adapters_are_listed(server: Served) -> None:
    cards = {card["id"]: card for card in server.client.get("/v1/models").json()["data"]}
    assert cards["own"]["parent"] == "tiny" and cards["tiny"]["parent"] is None
    missing = server.post("/v1/completions", {"model": "ow", **FIELDS})
    assert missing.status_code == 404
    assert "Did you mean 'own'? Served: tiny, own" in missing.json()["error"]["message"]


def test_an_adapter_has_a_name_of_its_own() -> None:
    with pytest.raises(OptionError, match="must not be a name of the model"):
        Settings(model="tiny", options={"model": "tiny", "adapters": ["tiny=x"]})


def test_the_command_line_uses_one_adapter(cli: Cli, words: Path, own: Path) -> None:
    flags = ("run", "-m", str(words), "--raw", "-q", "--temp", "0", "-n", "8", "hello")
    plain, changed = cli(*flags), cli(*flags, "--adapter", f"own={own}")
    assert (plain.code, changed.code) == (0, 0)
    assert plain.out != changed.out
    two = cli(*flags, "--adapter", f"own={own}", "--adapter", f"other={own}")
    assert two.code == 2
    assert "run uses one --adapter, 2 given: `serve` has many" in two.err
    wrong = cli(*flags, "--adapter", "own")
    assert wrong.code == 2 and "must be NAME=FOLDER, not 'own'" in wrong.err
