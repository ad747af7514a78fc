from __future__ import annotations

import re

import pytest

from mlxcel.models.catalogue import (
    CATALOGUE,
    DEFAULT_MODEL,
    CatalogueModel,
    Package,
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
