from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mlxcel.config import ModelConfig
from mlxcel.models.catalogue import DEFAULT_MODEL
from mlxcel.models.errors import ModelError
from mlxcel.models.fetch import Progress
from mlxcel.models.resolve import ResolvedModel, cached_snapshot, hub_snapshot, resolve
from mlxcel.models.store import INDEX


def checkpoint(directory: Path, *, weights: str = "model.safetensors") -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / weights).write_text("weights")
    return directory


class Hub:
    """Stands in for the model hub: makes a checkpoint where one is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(
        self, model_id: str, directory: Path, config: ModelConfig, environ: Mapping[str, str], progress: Progress
    ) -> None:
        self.asked.append(model_id)
        checkpoint(directory)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"MLXCEL_MODELS_DIR": str(tmp_path / "store"), "HF_HOME": str(tmp_path / "hf")}


def cache(environ: Mapping[str, str], model_id: str, *, commit: str = "c0ffee", ref: str = "main") -> Path:
    repository = Path(environ["HF_HOME"]) / "hub" / f"models--{model_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / ref).write_text(commit)
    return checkpoint(repository / "snapshots" / commit)


def test_a_directory_is_used_where_it_is(tmp_path: Path, environ: dict[str, str], hub: Hub) -> None:
    directory = checkpoint(tmp_path / "my-model")
    resolved = resolve(ModelConfig(model=str(directory)), environ=environ, snapshot=hub)
    assert resolved == ResolvedModel(directory, "my-model")
    assert hub.asked == []


def test_a_gguf_file_is_used_where_it_is(tmp_path: Path, environ: dict[str, str]) -> None:
    file = tmp_path / "tiny.Q8_0.gguf"
    file.write_text("GGUF")
    assert resolve(ModelConfig(model=str(file)), environ=environ) == ResolvedModel(file, "tiny.Q8_0")


def test_an_alias_is_the_served_name(tmp_path: Path, environ: dict[str, str]) -> None:
    config = ModelConfig(model=str(checkpoint(tmp_path / "m")), alias=("first", "second"))
    assert resolve(config, environ=environ).name == "first"


def test_an_existing_path_beats_every_other_meaning(
    tmp_path: Path, environ: dict[str, str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (DEFAULT_MODEL, "owner/name", "odd:q4"):
        local = checkpoint(tmp_path / name)
        assert resolve(ModelConfig(model=name), environ=environ, snapshot=hub).path == local


def test_a_catalogue_name_beats_the_hub(environ: dict[str, str], hub: Hub) -> None:
    for name in (DEFAULT_MODEL, f"mlxcel/{DEFAULT_MODEL}"):
        with pytest.raises(ModelError, match=f"mlxcel download {DEFAULT_MODEL}"):
            resolve(ModelConfig(model=name, offline=True), environ=environ, snapshot=hub)


def test_a_name_is_downloaded_once_and_reused(environ: dict[str, str], hub: Hub) -> None:
    config = ModelConfig(model="owner/name")
    resolved = resolve(config, environ=environ, snapshot=hub)
    assert resolved == ResolvedModel(Path(environ["MLXCEL_MODELS_DIR"]) / "owner" / "name", "name")
    assert resolve(config, environ=environ, snapshot=hub) == resolved
    assert resolve(ModelConfig(model="owner/name", offline=True), environ=environ, snapshot=hub) == resolved
    assert hub.asked == ["owner/name"]


def test_a_bare_name_belongs_to_the_default_owner(environ: dict[str, str], hub: Hub) -> None:
    resolve(ModelConfig(model="name"), environ=environ, snapshot=hub)
    resolve(ModelConfig(model="name"), environ={**environ, "MLXCEL_DEFAULT_ORG": "mine"}, snapshot=hub)
    assert hub.asked == ["mlx-community/name", "mine/name"]


def test_the_flag_for_the_store_beats_the_variable(tmp_path: Path, environ: dict[str, str], hub: Hub) -> None:
    config = ModelConfig(model="owner/name", store_root=tmp_path / "elsewhere")
    assert resolve(config, environ=environ, snapshot=hub).path == tmp_path / "elsewhere" / "owner" / "name"


def test_an_incomplete_model_is_completed(environ: dict[str, str]) -> None:
    directory = checkpoint(Path(environ["MLXCEL_MODELS_DIR"]) / "owner" / "name", weights="a.safetensors")
    (directory / INDEX).write_text('{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}')

    def complete(
        model_id: str, target: Path, config: ModelConfig, environ: Mapping[str, str], progress: Progress
    ) -> None:
        (target / "b.safetensors").write_text("weights")

    assert resolve(ModelConfig(model="owner/name"), environ=environ, snapshot=complete).path == directory


def test_the_hugging_face_cache_is_read(environ: dict[str, str], hub: Hub) -> None:
    snapshot = cache(environ, "owner/name")
    before = sorted(Path(environ["HF_HOME"]).rglob("*"))
    assert resolve(ModelConfig(model="owner/name"), environ=environ, snapshot=hub).path == snapshot
    assert sorted(Path(environ["HF_HOME"]).rglob("*")) == before
    assert hub.asked == []


def test_where_the_hugging_face_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    default = checkpoint(tmp_path / ".cache/huggingface/hub/models--a--b/snapshots/main")
    assert cached_snapshot("a/b", None, {}) == default
    assert cached_snapshot("a/b", None, {"HF_HUB_CACHE": str(tmp_path)}) is None
    named = checkpoint(tmp_path / "models--a--b/snapshots/abc")
    assert cached_snapshot("a/b", "abc", {"HF_HUB_CACHE": str(tmp_path), "HF_HOME": "/nowhere"}) == named
    for revision in ("../../..", "..", "refs/../../x"):
        assert cached_snapshot("a/b", revision, {}) is None


def test_a_revision_is_compared_with_the_hub_unless_offline(environ: dict[str, str], hub: Hub) -> None:
    tagged = cache(environ, "owner/name", ref="v2")
    offline = ModelConfig(model="owner/name", revision="v2", offline=True)
    assert resolve(offline, environ=environ, snapshot=hub).path == tagged
    resolve(ModelConfig(model="owner/name", revision="v2"), environ=environ, snapshot=hub)
    assert hub.asked == ["owner/name"]


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("https://someone:secret@host/model", r"'https://host/model' is a URL"),
        ("hf://owner/name", "is a URL"),
        ("owner/name:q4_k_m", r"':q4_k_m', which is not supported; use 'owner/name'"),
        ("name:latest", "use 'name'"),
        ("/no/such/model", "does not exist"),
        ("./model", "does not exist"),
        ("~/model", "does not exist"),
        ("~no-such-user/model", "not a usable path"),
        ("x" * 300, "not a usable path: .*too long"),
        ("a\0b", "neither a path nor a model name"),
        ("some.gguf", "does not exist"),
        ("a/b/c", "does not exist"),
        ("..", "no config.json"),
        ("owner/na me", "neither a path nor a model name"),
        ("owner/..", "is not a model directory|does not exist|neither"),
        ("", "no model given"),
        (None, "try --model smollm2-135m"),
    ],
)
def test_what_is_no_model_is_refused_before_any_download(
    reference: str | None,
    words: str,
    environ: dict[str, str],
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ModelError, match=words) as error:
        resolve(ModelConfig(model=reference), environ=environ, snapshot=hub)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)
    assert hub.asked == []


def test_local_files_that_are_no_model(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "big-00001-of-00003.gguf").write_text("")
    broken = checkpoint(tmp_path / "broken")
    (broken / INDEX).write_text(json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(5)}}))
    (broken / "model.safetensors").unlink()
    for path, words in {
        "notes.txt": "not a .gguf file",
        "big-00001-of-00003.gguf": "one part of a split GGUF",
        ".": r"no config\.json; name a file in it, such as .*\.gguf",
        "broken": r"missing 0\.safetensors, 1\.safetensors, 2\.safetensors and 2 more",
    }.items():
        with pytest.raises(ModelError, match=words):
            resolve(ModelConfig(model=str(tmp_path / path)), environ=environ)


def test_a_token_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    environ = {"HF_ENDPOINT": "http://user:pass@127.0.0.1:9"}
    config = ModelConfig(model="owner/name", hf_token="hf_secret")
    with pytest.raises(ModelError, match="not sent to http://127") as error:
        hub_snapshot("owner/name", tmp_path / "owner" / "name", config, environ, print)
    assert "secret" not in str(error.value)
    assert "pass" not in str(error.value)


def test_a_hub_out_of_reach_is_one_short_line(tmp_path: Path, environ: dict[str, str]) -> None:
    environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    with pytest.raises(ModelError, match=r"'owner/name' .* hub cannot be reached \(ConnectError\)"):
        resolve(ModelConfig(model="owner/name"), environ=environ)


FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "model.safetensors": b"w" * 3000,
    "script.py": b"raise SystemExit",
    "model.gguf": b"g" * 3000,
}
COMMIT = "a" * 40


class HubServer:
    """The few routes of the hub's HTTP interface that a download uses."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.fetched: list[str] = []
        self.authorized: list[str | None] = []
        self.refusals: dict[str, tuple[int, str]] = {}
        """Status and error code for a part of a path."""
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.authorized.append(self.headers.get("authorization"))
                path = self.path.partition("?")[0]
                if path.startswith("/api/models/owner/name/tree/"):
                    tree = [{"type": "file", "path": n, "size": len(c), "oid": oid(c)} for n, c in hub.files.items()]
                    self._answer(json.dumps(tree).encode())
                elif path.startswith("/api/models/owner/name"):
                    self._answer(json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": []}).encode())
                elif path.startswith("/owner/name/resolve/"):
                    name = path.rpartition("/")[2]
                    hub.fetched += [name] if self.command == "GET" else []
                    self._answer(hub.files[name], ETag=f'"{oid(hub.files[name])}"')
                else:
                    refusals = [hub.refusals[part] for part in path.split("/") if part in hub.refusals]
                    status, code = refusals[0] if refusals else (404, "RepoNotFound")
                    self._answer(b"{}", status, **{"X-Error-Code": code})

            do_HEAD = do_GET

            def _answer(self, content: bytes, status: int = 200, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"X-Repo-Commit": COMMIT, "Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = HubServer()
    yield server
    server.close()


def test_a_checkpoint_is_downloaded_from_the_hub(
    hub_server: HubServer, environ: dict[str, str], tmp_path: Path
) -> None:
    environ["HF_ENDPOINT"] = hub_server.url
    steps: list[tuple[str, int, int]] = []
    config = ModelConfig(model="owner/name")
    resolved = resolve(config, lambda *step: steps.append(step), environ=environ)
    assert {path.name for path in resolved.path.iterdir() if path.is_file()} == {"config.json", "model.safetensors"}
    assert (resolved.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    total = len(FILES["config.json"]) + len(FILES["model.safetensors"])
    assert steps[-1] == ("owner/name", total, total)
    assert set(hub_server.authorized) == {None}
    assert not (tmp_path / "hf").exists()
    hub_server.fetched.clear()
    assert resolve(config, environ=environ) == resolved
    assert hub_server.fetched == []


def test_the_hub_is_asked_with_the_token_given(hub_server: HubServer, environ: dict[str, str]) -> None:
    environ |= {"HF_ENDPOINT": hub_server.url, "MLXCEL_ALLOW_INSECURE_ENDPOINT": "1"}
    resolve(ModelConfig(model="owner/name", hf_token="hf_token_of_mine"), environ=environ)
    assert "Bearer hf_token_of_mine" in hub_server.authorized


@pytest.mark.parametrize(
    ("model", "missing", "words"),
    [
        ("owner/name", "model.safetensors", r"no config\.json with \.safetensors weights"),
        ("owner/name", "config.json", r"no config\.json with \.safetensors weights"),
        ("owner/other", "", "is not on the hub, or is private"),
    ],
)
def test_what_the_hub_does_not_have(
    model: str, missing: str, words: str, hub_server: HubServer, environ: dict[str, str]
) -> None:
    hub_server.files.pop(missing, None)
    environ["HF_ENDPOINT"] = hub_server.url
    with pytest.raises(ModelError, match=words):
        resolve(ModelConfig(model=model), environ=environ)
    assert hub_server.fetched == []


def test_what_the_hub_refuses(hub_server: HubServer, environ: dict[str, str]) -> None:
    hub_server.refusals = {"gated": (403, "GatedRepo"), "v9": (404, "RevisionNotFound"), "broken": (500, "")}
    environ["HF_ENDPOINT"] = hub_server.url
    for config, words in (
        (ModelConfig(model="owner/gated"), "asks for an agreement on the hub"),
        (ModelConfig(model="owner/other", revision="v9"), "no such revision"),
        (ModelConfig(model="owner/broken"), "cannot be reached"),
    ):
        with pytest.raises(ModelError, match=words) as error:
            resolve(config, environ=environ)
        assert "\n" not in str(error.value)


def test_a_checkpoint_that_stays_incomplete_is_tried_twice(hub_server: HubServer, environ: dict[str, str]) -> None:
    hub_server.files[INDEX] = b'{"weight_map": {"x": "model.safetensors", "y": "lost.safetensors"}}'
    hub_server.files["other-00001-of-00002.safetensors"] = b"w"
    environ["HF_ENDPOINT"] = hub_server.url
    with pytest.raises(ModelError, match=r"not a complete model: missing lost\.safetensors"):
        resolve(ModelConfig(model="owner/name"), environ=environ)
    assert hub_server.fetched.count("model.safetensors") == 2
