"""GET /v1/models."""

from __future__ import annotations

from ..stub import run, serving


def test_the_one_model() -> None:
    async def work() -> None:
        async with serving() as served:
            first, second = await served.http.get("/v1/models"), await served.http.get("/models")
            (entry,) = first.json()["data"]
            assert first.json()["object"] == "list"
            assert (entry["id"], entry["object"], entry["owned_by"]) == ("scripted", "model", "user")
            assert isinstance(entry["created"], int)
            assert second.json() == first.json()

    run(work())
