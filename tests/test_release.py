"""The release: what wheel and sdist hold, and that the wheel works where it is all there is.

Of every interpreter from 3.11 to 3.14 that is here, a new environment gets the wheel alone. The one
that runs the tests lends it the libraries that are installed for them; others ask the index of
packages for NumPy and, where there is none, try what needs no NumPy. With SHARDCOST_RELEASE, the
folder of a release as `make release` builds it, all extras are installed by every interpreter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from shardcost import __version__
from shardcost.catalog.parsed import SHIPPED, Store

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OWN = "{}.{}".format(*sys.version_info)
PARSED = f"shardcost/catalog/{SHIPPED}"
TRIAL = Path(__file__).with_name("clean_trial.py")
EXTRAS_OF_USERS = ("array", "fit", "plot", "progress", "table", "topology", "web")
RELEASE = os.environ.get("SHARDCOST_RELEASE")
PATIENCE_S = 600 if RELEASE else 180
on_posix = pytest.mark.skipif(
    sys.platform == "win32", reason="environments have other folders there"
)


class Built(NamedTuple):
    """A release."""

    wheel: Path
    sdist: Path
    source: Path
    """The sdist, unpacked."""


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without what the environment says of Python."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip


def hatch(folder: Path, kind: str, target: Path) -> Path:
    """Return what the build backend makes of a folder."""
    program = f"import hatchling.build as b; print(b.build_{kind}({str(target)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a release: the sdist, and the wheel that is built of it."""
    target = tmp_path_factory.mktemp("release")
    if RELEASE:
        (sdist,) = (repository / RELEASE).glob("*.tar.gz")
    else:
        pytest.importorskip("hatchling")
        sdist = hatch(repository, "sdist", target)
    with tarfile.open(sdist) as packed:
        packed.extractall(target, filter="data")
    source = target / sdist.name.removesuffix(".tar.gz")
    wheel = hatch(source, "wheel", target)
    if RELEASE:
        (released,) = (repository / RELEASE).glob("*.whl")
        assert released.read_bytes() == wheel.read_bytes()
    return Built(wheel, sdist, source)


def test_the_wheel_has_the_package_whole_and_nothing_else(built: Built, repository: Path) -> None:
    package = repository / "src" / "shardcost"
    if not package.is_dir():
        pytest.skip("no source of the package beside the tests")
    names = set(zipfile.ZipFile(built.wheel).namelist())
    own = {name for name in names if ".dist-info/" not in name}
    assert own - {PARSED} == {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "shardcost/py.typed" in own
    assert len([name for name in own if name.startswith("shardcost/catalog/")]) > 200
    assert built.wheel.name == f"shardcost-{__version__}-py3-none-any.whl"
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    stated = zipfile.ZipFile(built.wheel).read(metadata).decode()
    for python in PYTHONS:
        assert f"Classifier: Programming Language :: Python :: {python}\n" in stated
    needed: dict[str, set[str]] = {}
    for what, extra in re.findall(r"Requires-Dist: (.*) extra == '(\w+)'", stated):
        needed.setdefault(extra, set()).add(what.removesuffix(" and").rstrip("; "))
    assert needed["all"] == set().union(*(needed[extra] for extra in EXTRAS_OF_USERS))


def test_the_wheel_has_the_catalog_parsed(built: Built) -> None:
    packed = zipfile.ZipFile(built.wheel)
    store = Store(packed.read(PARSED))
    folder = "shardcost/catalog/"
    files = [each for each in packed.namelist() if each.startswith(folder)]
    names = {each for each in files if each.endswith(".toml")}
    assert len(names) > 200
    for name in names:
        entry = store.entry(name.removeprefix(folder).removesuffix(".toml"))
        assert entry is not None, name
        assert entry.holds_for(packed.read(name)), name


def test_the_wheel_has_the_size_on_record(built: Built, repository: Path) -> None:
    page = (repository / "docs" / "stability.md").read_text(encoding="utf-8")
    stated = re.search(r"\| wheel \| ([\d,]+) bytes \|", page)
    assert stated is not None
    recorded = int(stated[1].replace(",", ""))
    assert 0.8 * recorded < built.wheel.stat().st_size < 1.1 * recorded, "record it in that page"


def test_the_citation_is_of_this_version(repository: Path) -> None:
    lines = (repository / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    stated = dict(line.split(": ", 1) for line in lines if line[:1].isalpha() and ": " in line)
    assert (stated["cff-version"], stated["version"]) == ("1.2.0", __version__)
    assert stated["license"] == "Apache-2.0"
    assert {"message", "title", "type"} <= stated.keys()
    assert "  - name: The shardcost authors" in lines[lines.index("authors:") :]


def test_the_sdist_has_what_tests_and_documentation_need(built: Built) -> None:
    names = {path.name for path in built.source.iterdir()}
    assert names >= {"src", "lab", "tests", "docs", "benchmarks", "README.md", "CHANGELOG.md"}
    assert names >= {"LICENSE", "SECURITY.md", "CITATION.cff", "CONTRIBUTING.md", "mkdocs.yml"}
    with tarfile.open(built.sdist) as packed:
        assert not [each for each in packed.getnames() if "__pycache__" in each]


def interpreter(python: str) -> str:
    """Return the path of an interpreter that runs; skip where there is none."""
    if python == OWN:
        return sys.executable
    managed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{python}.*/bin/python"))
    for path in (shutil.which(f"python{python}"), *map(str, managed)):
        if path and run([path, "-c", "import venv"], Path.home()).returncode == 0:
            return path
    pytest.skip(f"no Python {python} here")


def environment(python: str, folder: Path, wheel: Path, *, lends: bool) -> Path:
    """Return the interpreter of a new environment with a wheel.

    What is installed beside this interpreter is lent as a path, not as a site: the files there
    that make a package editable are not read.
    """
    done = run([interpreter(python), "-m", "venv", "--without-pip", folder], folder.parent)
    assert done.returncode == 0, done.stderr
    own = folder / "bin" / "python"
    done = install(own, "--no-index", "--no-deps", wheel)
    assert done.returncode == 0, done.stderr
    if lends:
        (packages,) = (folder / "lib").glob("python*/site-packages")
        (packages / "lent.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    return own


def install(into: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Install with the pip of the tests' environment."""
    pip = [sys.executable, "-m", "pip", "--python", str(into), "--quiet", "install"]
    return run([*pip, *map(str, words)], into.parent)


@on_posix
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_works_where_it_is_all_there_is(
    python: str, built: Built, tmp_path: Path
) -> None:
    own = environment(python, tmp_path / "env", built.wheel, lends=python == OWN and not RELEASE)
    tried = ["numbers"]
    if RELEASE:
        done = install(own, f"{built.wheel}[all]")
        assert done.returncode == 0, done.stderr
        tried += ["page"]
    elif python == OWN:
        tried += ["page"]
    elif install(own, "--only-binary=:all:", "--no-compile", "--retries=1", "numpy").returncode:
        tried = []
    empty = tmp_path / "empty"
    empty.mkdir()
    found = run([own, "-I", TRIAL, __version__, *tried], empty)
    assert found.returncode == 0, found.stderr
    if not tried:
        pytest.skip(f"no NumPy for Python {python} can be had: tried what needs none")


@on_posix
def test_a_script_of_a_user_is_well_typed_and_runs(built: Built, tmp_path: Path) -> None:
    """By the types of the installed package: nothing that is public is untyped."""
    pytest.importorskip("mypy")
    own = environment(OWN, tmp_path / "env", built.wheel, lends=True)
    (tmp_path / "folder").mkdir()  # where no file sets the type checker up
    script = tmp_path / "folder" / "script.py"
    shutil.copy(TRIAL.parent / "data" / "user_script.py", script)
    where = ["--python-executable", str(own), "--cache-dir", str(tmp_path / "cache")]
    checked = [sys.executable, "-m", "mypy", "--strict", *where, script.name]
    found = run(checked, script.parent)
    assert found.stdout == "Success: no issues found in 1 source file\n", found.stdout
    script.write_text(script.read_text() + "\nassert_type(found, Load)\n")  # else it finds nothing
    found = run(checked, script.parent)
    assert 'Expression is of type "Estimate", not "Load"' in found.stdout
    done = run([own, "-I", script], script.parent)
    assert (done.returncode, done.stderr) == (0, "")
