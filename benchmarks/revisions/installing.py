"""Both revisions, each built and installed in a virtual environment of its own, in the same way.

The working tree is installed like any other revision: git gives its files, also new ones, the identifier of a tree. The
name of an installation's folder is a hash of all files that can change what is built. So each state is built once.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "against"
KEPT = 8  # installations
NOT_BUILT = {"benchmarks", "docs", "examples", "packages", "tests", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"}
BUILD_TIMEOUT = 1200.0  # seconds
GIT_TIMEOUT = 60.0


class RevisionError(RuntimeError):
    """A revision that does not exist, or cannot be installed or measured."""


@dataclass(frozen=True)
class Revision:
    """One side of the comparison: what the user calls it, its commit, and the tree of its files."""

    name: str
    commit: str
    tree: str

    @property
    def title(self) -> str:
        return f"{self.name} ({self.commit[:10]})"

    @property
    def built_files(self) -> str:
        """A hash that two revisions share if the same is built from them."""
        entries = _git("ls-tree", self.tree).splitlines()
        built = [entry for entry in entries if entry.partition("\t")[2] not in NOT_BUILT]
        return hashlib.sha256("\n".join(built).encode()).hexdigest()[:16]


def named_revision(name: str) -> Revision:
    """The revision that git knows under this name."""
    try:
        commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except subprocess.CalledProcessError as error:
        raise RevisionError(
            f"a revision is a commit, branch or tag of this repository, and {name!r} is none; `git log` lists commits."
        ) from error
    return Revision(name, commit, _git("rev-parse", f"{commit}^{{tree}}"))


def working_tree() -> Revision:
    """The files as they are now, whether committed or not; ignored ones are left out."""
    head = named_revision("HEAD")
    with tempfile.TemporaryDirectory() as folder:
        # An index of its own: that of the user stays as it is.
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git("add", "--all", env=index)
        tree = _git("write-tree", env=index)
    changed = " with changes" if tree != head.tree else ""
    return Revision(f"working tree{changed}", head.commit, tree)


def _git(*arguments: str, env: dict[str, str] | None = None) -> str:
    command = ["git", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=True,
        timeout=GIT_TIMEOUT,
    )
    return done.stdout.strip()


def installed(revision: Revision) -> Path:
    """The Python in whose environment this revision is installed; the first time, it is built."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / f"{revision.built_files}-{sys.implementation.cache_tag}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second run waits until this one has installed its revisions
        if not stamp.exists():
            print(f"installing {revision.title} ...", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _install(revision, folder, python)
        stamp.touch()  # the time of the last use
        _remove_oldest()
    return python


def _install(revision: Revision, folder: Path, python: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], "a virtual environment cannot be made")
    (site,) = folder.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # Packages of this environment, torch among them. Files of .pth in those folders have no effect there, so that an
    # editable installation of thinwire in this environment does not hide the one that is made here.
    (site / "shared.pth").write_text("".join(f"{path}\n" for path in shared), encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        _unpack(revision, source)
        # Backends of the build that are here already are used; else pip fetches them.
        here = all(importlib.util.find_spec(name) for name in ("scikit_build_core", "nanobind"))
        options = ["--quiet", "--no-deps", "--ignore-installed", *(["--no-build-isolation"] if here else [])]
        _run([str(python), "-m", "pip", "install", *options, str(source)], f"{revision.title} cannot be installed")
        if (source / "CMakeLists.txt").exists() and not list(site.glob("thinwire*/**/*.so")):
            raise RevisionError(
                f"{revision.title} was installed without its compiled kernels, so that times would mean nothing;"
                " install a C++17 compiler and the headers of Python."
            )


def _unpack(revision: Revision, folder: Path) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        _git("archive", "--format=tar", f"--output={archive.name}", revision.tree)
        with tarfile.open(archive.name) as files:
            files.extractall(folder, filter="data")


def _run(command: list[str], complaint: str) -> None:
    try:
        subprocess.run(command, env=plain_environment(), check=True, capture_output=True, timeout=BUILD_TIMEOUT)
    except subprocess.CalledProcessError as error:
        said = (error.stderr + error.stdout).decode(errors="replace").strip()
        raise RevisionError(f"{complaint}; `{' '.join(command)}` says:\n{said[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise RevisionError(f"{complaint}: it took longer than {BUILD_TIMEOUT:.0f} seconds.") from error


def plain_environment() -> dict[str, str]:
    """The user's variables without those that lead Python to other packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _remove_oldest() -> None:
    """Keeps the installations that were used last; half-made ones go first."""
    folders = [folder for folder in CACHE.iterdir() if folder.is_dir()]
    stamps = {folder: folder / "installed" for folder in folders}
    last_use = {f: stamp.stat().st_mtime if stamp.exists() else 0.0 for f, stamp in stamps.items()}
    for folder in sorted(folders, key=lambda f: last_use[f], reverse=True)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
