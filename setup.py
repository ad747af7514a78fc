"""Builds the native CPU kernels where that is possible: `mlxcel._kernels`, and `mlxcel._mlx_kernels`, which offers them
as operations on MLX arrays. No installation fails because of them: without a compiler, or on a machine they are not
written for, `mlxcel/_kernels_build.txt` (`_mlx_kernels_build.txt`) says why they are missing.

Everything else about the package is in pyproject.toml. `python setup.py build_ext --inplace` builds just the kernels,
and only what has changed. MLXCEL_BUILD_KERNELS=0 leaves them out; CXX names the compiler; MLXCEL_BUILD_ISAS, such as
"portable avx2", builds only these instruction sets.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "native" / "src"
MLX_SOURCES = ROOT / "native" / "mlx"
ISAS = ROOT / "native" / "isas.txt"
# No contraction: a row's sums are the same in every kernel, so nothing but an explicit fma may fuse.
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread", "-Wno-psabi"]
BINDING_FLAGS = ["-O2", "-fno-strict-aliasing", "-ffunction-sections", "-fdata-sections", "-DNB_COMPACT_ASSERTIONS"]

# A module is tried out before it is installed. nanobind modules share types only when they were built alike, so the
# one that takes MLX's arrays must prove that it does.
LOAD = """
import importlib.util, sys
name, path = sys.argv[1:]
if name == "_mlx_kernels":
    import mlx.core as mx
spec = importlib.util.spec_from_file_location(name, path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
if name == "_mlx_kernels":
    assert module.Operations(threads=1, precision="exact").rms_norm(mx.ones((2, 8)), None, 1e-5).sum().item() > 15
"""


class NoKernelsError(Exception):
    """Why there are no kernels here: a line for users, then what the compiler said."""


def instruction_sets() -> list[tuple[str, list[str]]]:
    """Name and compiler flags of each, for this machine, in the order in which they must be linked."""
    lines = [line.split() for line in ISAS.read_text().splitlines() if not line.startswith("#")]
    wanted = os.environ.get("MLXCEL_BUILD_ISAS", "").split() or [line[1] for line in lines]
    return [(name, flags) for machine, name, *flags in lines if machine == platform.machine() and name in wanted]


def run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise NoKernelsError(f"the compiler does not start ({error})") from error
    if done.returncode:
        output = (done.stderr + done.stdout).splitlines()
        first = next((line for line in output if "error" in line), f"exit status {done.returncode}")
        raise NoKernelsError("\n".join([f"their build failed ({first.strip()})", shlex.join(command), *output[:60]]))


def find_compiler() -> list[str]:
    if os.environ.get("MLXCEL_BUILD_KERNELS") == "0":
        raise NoKernelsError("they were left out on request (MLXCEL_BUILD_KERNELS=0)")
    if sys.platform != "linux" or not instruction_sets() or sys.maxsize < 2**32:
        raise NoKernelsError(f"there are none for {platform.system()} on {platform.machine()} yet")
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return [path]
    raise NoKernelsError("no C++ compiler was found when it was installed (apt-get install g++)")


def mlx_package() -> Path:
    """The folder of the MLX package that the operations are built for."""
    spec = importlib.util.find_spec("mlx")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [Path(folder) for folder in folders if (Path(folder) / "include" / "mlx" / "mlx.h").exists()]
    if not found or not (found[0] / "lib" / "libmlx.so").exists():
        raise NoKernelsError("MLX's headers were missing when it was installed")
    return found[0]


def mlx_version() -> str:
    """Of the MLX package there is; empty without one."""
    try:
        return importlib.metadata.version("mlx")
    except importlib.metadata.PackageNotFoundError:
        return ""


def binding_includes() -> tuple[list[str], Path]:
    """Compiler flags for the sources that use Python, and the source of nanobind itself."""
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").exists():
        raise NoKernelsError("Python's headers were missing when it was installed (apt-get install python3-dev)")
    try:
        import nanobind
    except ImportError as error:
        raise NoKernelsError("nanobind was missing when it was installed") from error
    root = Path(nanobind.__file__).parent
    includes = [python, root / "include", root / "ext" / "robin_map" / "include"]
    return [f"-I{path}" for path in includes], root / "src" / "nb_combined.cpp"


def is_current(target: Path) -> bool:
    """Whether an object is newer than all the files that the compiler listed beside it."""
    listed = target.with_suffix(".d")
    if not target.exists() or not listed.exists():
        return False
    made_of = [Path(name) for name in listed.read_text().partition(":")[2].replace("\\\n", " ").split()]
    built = target.stat().st_mtime
    return all(path.exists() and path.stat().st_mtime < built for path in made_of)


class Build:
    """Objects in build/kernels; one is kept while it is newer than what it was made of and its command is the same."""

    def __init__(self) -> None:
        self.compiler = find_compiler()
        self.objects = ROOT / "build" / "kernels"
        self.objects.mkdir(parents=True, exist_ok=True)

    def compile(self, source: Path, flags: list[str]) -> Path:
        command = [*self.compiler, *FLAGS, *flags, "-c", str(source), "-o"]
        key = hashlib.sha256(shlex.join(command).encode()).hexdigest()[:12]
        target = self.objects / f"{source.stem}-{key}.o"
        if not is_current(target):
            partial = target.with_suffix(f".{os.getpid()}.o")
            run([*command, str(partial), "-MMD", "-MT", target.stem, "-MF", str(target.with_suffix(".d"))])
            partial.replace(target)
        return target

    def build(self, name: str, target: Path) -> None:
        """Make the module `name`."""
        includes, nanobind = binding_includes()
        binding = [*BINDING_FLAGS, *includes]
        plain = sorted(set(SOURCES.glob("*.cpp")) - {SOURCES / "isa.cpp", *SOURCES.glob("module*.cpp")})
        per_set = [(SOURCES / "isa.cpp", [f"-DMLXCEL_ISA={isa}", *flags]) for isa, flags in instruction_sets()]
        if name == "_mlx_kernels":
            mlx = mlx_package()
            # In MLX's own domain, so that its arrays are known here.
            binding = [*binding, "-DNB_DOMAIN=mlx", f"-isystem{mlx / 'include'}"]
            sources = sorted(MLX_SOURCES.glob("*.cpp"))
            # No path to it: whoever imports this module has loaded MLX before.
            libraries = [f"-L{mlx / 'lib'}", "-lmlx"]
        else:
            # It also tells what the other module was built for, which cannot always be loaded to be asked.
            binding = [*binding, f'-DMLXCEL_MLX_VERSION="{mlx_version()}"']
            sources = sorted(SOURCES.glob("module*.cpp"))
            libraries = []
        # isas.txt says why the instruction sets come last, and in that order.
        bound = [(source, binding) for source in sources]
        units = [(nanobind, binding), *bound, *((source, []) for source in plain), *per_set]
        pool = ThreadPoolExecutor(max(2, min(8, os.cpu_count() or 1)))
        try:
            # The longest first.
            futures = {index: pool.submit(self.compile, *units[index]) for index in reversed(range(len(units)))}
            objects = [str(futures[index].result()) for index in range(len(units))]
        finally:
            pool.shutdown(cancel_futures=True)
        run([*self.compiler, "-shared", "-pthread", "-Wl,--gc-sections", *objects, *libraries, "-o", str(target)])
        run([sys.executable, "-c", LOAD, name, str(target)])


class BuildKernels(build_ext):
    def build_extension(self, ext: Extension) -> None:
        name = ext.name.rpartition(".")[2]
        target = self.built(ext)
        note = target.with_name(f"{name}_build.txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        for earlier in (target, note):
            earlier.unlink(missing_ok=True)
        try:
            Build().build(name, target)
        except Exception as error:  # whatever it is: the package works without them
            why = str(error) if isinstance(error, NoKernelsError) else repr(error)
            note.write_text(f"{why}\n")
            self.warn(f"installed without {ext.name}, native kernels: {why.splitlines()[0]}")

    def copy_extensions_to_source(self) -> None:
        """For an editable installation: what was built, or why not, and nothing of an earlier build."""
        package = Path(self.get_finalized_command("build_py").get_package_dir("mlxcel"))
        for ext in self.extensions:
            for built in (self.built(ext), self.built(ext).with_name(f"{ext.name.rpartition('.')[2]}_build.txt")):
                (package / built.name).unlink(missing_ok=True)
                if built.exists():
                    self.copy_file(str(built), str(package / built.name))

    def built(self, ext: Extension) -> Path:
        return Path(self.build_lib) / self.get_ext_filename(ext.name)


MODULES = ("mlxcel._kernels", "mlxcel._mlx_kernels")
setup(
    ext_modules=[Extension(name, sources=[], optional=True) for name in MODULES],
    cmdclass={"build_ext": BuildKernels},
)
