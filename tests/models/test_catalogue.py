from __future__ import annotations

import re

import pytest

from mlxcel.models.catalogue import (
    CATALOGUE,
    DEFAULT_MODEL,
    CatalogueFile,
    CatalogueModel,
    Package,
    Part,
    find,
)
from mlxcel.models.store import is_model_id

PACKAGE = Package("pkg", "1", "pkg-1-py3-none-any.whl", "0" * 64, 100)


@pytest.mark.parametrize("model", CATALOGUE.values(), ids=str)
def test_every_file_is_pinned(model: CatalogueModel) -> None:
    assert is_model_id(model.store_id)
    assert model.files
    for file in model.files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert file.size > 0
        assert file.parts
        for part in file.parts:
            assert re.fullmatch(r"[0-9a-f]{64}", part.package.sha256)
            assert part.package.wheel.startswith(part.package.name.replace("-", "_") + f"-{part.package.version}-")
    assert not model.entry or model.entry in {file.name for file in model.files}


def test_a_model_is_found_by_its_name_and_by_its_name_in_the_store() -> None:
    model = CATALOGUE[DEFAULT_MODEL]
    assert find(DEFAULT_MODEL) is model
    assert find(model.store_id) is model
    assert find("mlx-community/" + DEFAULT_MODEL) is None


def test_a_package_that_holds_several_parts_counts_once() -> None:
    other = Package("other", "1", "other-1-py3-none-any.whl", "1" * 64, 7)
    files = (
        CatalogueFile("a", (Part(PACKAGE, "x"), Part(other, "y")), "0" * 64, 1),
        CatalogueFile("b", (Part(PACKAGE, "z"),), "0" * 64, 1),
    )
    assert CatalogueModel("m", files, "MIT", "").download_size == 107
