"""The files under infra/ parse, name only what exists, and keep to the rules they claim."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
from accounts import NOBODY, needs_root

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
DOCKERFILES = sorted((INFRA / "docker").glob("Dockerfile.*"))
INSTRUCTIONS = {
    "ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD",
}  # fmt: skip


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments), comments dropped, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(word, rest) for word, rest in split]


def arguments(path: Path, name: str) -> list[str]:
    return [rest for word, rest in instructions(path) if word == name]


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_is_an_image_for_cpus_and_one_for_gpus() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.gpu"]


def test_a_dockerfile_holds_known_instructions_only(dockerfile: Path) -> None:
    assert {word for word, _ in instructions(dockerfile)} <= INSTRUCTIONS


def test_base_images_are_pinned_to_a_full_version(dockerfile: Path) -> None:
    pinned = [value.split("=", 1)[1] for value in arguments(dockerfile, "ARG") if "_IMAGE=" in value]
    assert pinned
    assert all(re.search(r":\d+\.\d+\.\d+-", image) for image in pinned)
    assert all(image.startswith("${") for image in arguments(dockerfile, "FROM"))


def test_every_copied_file_exists(dockerfile: Path) -> None:
    stages = {rest.split(" AS ")[1] for rest in arguments(dockerfile, "FROM")}
    assert stages == {"page", "guide", "environment", "ringleader"}
    from_stages = [rest.split()[0] for rest in arguments(dockerfile, "COPY") if rest.startswith("--from=")]
    assert set(from_stages) == {"--from=page", "--from=guide", "--from=environment"}, (
        "the package carries what is built"
    )
    for rest in arguments(dockerfile, "COPY"):
        words = rest.split()
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source


def test_the_image_runs_without_privileges(dockerfile: Path) -> None:
    final = instructions(dockerfile)
    last_stage = max(i for i, (word, _) in enumerate(final) if word == "FROM")
    words = [word for word, _ in final[last_stage:]]
    assert ("USER", "ringleader") in final[last_stage:]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "USER root" not in dockerfile.read_text()


def test_both_images_differ_in_torch_only() -> None:
    """A change to one that the other needs too would show here."""
    cpu, gpu = (
        [
            (word, rest)
            for word, rest in instructions(path)
            if "torch" not in rest and not (word == "ENV" and "RINGLEADER_HOME" in rest)
        ]
        for path in DOCKERFILES
    )
    assert cpu == gpu


def test_the_torch_of_the_images_is_the_one_the_package_asks_for(dockerfile: Path) -> None:
    asked = re.search(r'"(torch==[\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert asked is not None
    assert asked.group(1) in dockerfile.read_text()


def test_no_infrastructure_file_names_a_registry_or_holds_a_secret() -> None:
    for path in (path for path in INFRA.rglob("*") if path.is_file()):
        text = path.read_text()
        assert not re.search(r"https?://(?!127\.0\.0\.1)", text), path.name
        assert not re.search(r"(?i)(password|token)\s*=\s*['\"]?[0-9a-f]{8}", text), path.name


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(INFRA / "ray/cluster.sh"), *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_cluster_script_parses() -> None:
    subprocess.run(["bash", "-n", str(INFRA / "ray/cluster.sh")], check=True, timeout=60)
    assert run().returncode == 2
    assert "cluster.sh join NODES TOKEN_FILE" in run().stdout


def test_the_cluster_script_writes_a_token_that_only_its_owner_reads(tmp_path: Path) -> None:
    token = tmp_path / "token"
    assert run("token", str(token)).returncode == 0
    assert token.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}", token.read_text())
    before = token.read_text()
    assert run("token", str(token)).returncode == 2
    assert token.read_text() == before


@pytest.mark.parametrize(
    ("nodes", "mode", "complaint"),
    [
        ("8.8.8.8 1 0", 0o600, "neither private nor loopback"),
        ("127.0.0.1 1 0", 0o600, "use 127.0.0.2"),
        ("127.0.0.2 1 0", 0o644, "others can read"),
        ("# nobody", 0o600, "no nodes"),
    ],
)
def test_the_cluster_script_refuses_what_is_not_safe(
    tmp_path: Path, nodes: str, mode: int, complaint: str
) -> None:
    token, listed = tmp_path / "token", tmp_path / "nodes"
    token.write_text("a" * 64)
    token.chmod(mode)
    listed.write_text(nodes + "\n")
    refused = run("head", str(listed), str(token))
    assert refused.returncode == 2
    assert complaint in refused.stderr


def head_of(folder: Path) -> subprocess.CompletedProcess[str]:
    """The head, with something in Ray's place that says what it is told."""
    token, listed = folder / "token", folder / "nodes"
    token.write_text("a" * 64)
    token.chmod(0o600)
    listed.write_text("127.0.0.2 1 0\n")
    words = [str(INFRA / "ray/cluster.sh"), "head", str(listed), str(token)]
    environ = {**os.environ, "RAY_BIN": "echo", "RAY_TMPDIR": str(folder / "tmp")}
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_the_cluster_script_gives_ray_a_folder_that_nobody_else_can_enter(tmp_path: Path) -> None:
    own = tmp_path / "tmp" / f"rl-{os.getuid()}"
    own.mkdir(parents=True, mode=0o755)
    assert f"--temp-dir={own}/ray" in head_of(tmp_path).stdout
    assert own.stat().st_mode & 0o777 == 0o700


@needs_root
def begun_clusters() -> list[tuple[str, set[str]]]:
    """The calls of `ray.init` in the product that name no running cluster: file and keywords."""
    found = []
    for path in (ROOT / "platform").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "ray.init":
                told = {each.arg or "": each.value for each in call.keywords}
                address = told.get("address")
                if address is None or ast.unparse(address) == "'local'":
                    found.append((path.name, set(told)))
    return found


def test_ray_gets_a_folder_of_our_own_wherever_a_cluster_is_begun() -> None:
    """Ray opens its own to everybody, who could put links in place of what its owner writes."""
    begun = begun_clusters()
    assert {name for name, _ in begun} >= {"head.py", "ray_train.py", "ray_tune.py"}
    assert [name for name, told in begun if "_temp_dir" not in told] == []


def test_the_cluster_script_takes_no_folder_of_another_account(tmp_path: Path) -> None:
    own = tmp_path / "tmp" / f"rl-{os.getuid()}"
    own.mkdir(parents=True)
    os.chown(own, NOBODY, NOBODY)
    refused = head_of(tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "set RAY_TMPDIR" in refused.stderr
    own.rmdir()
    own.symlink_to(tmp_path)
    assert head_of(tmp_path).returncode == 2


def test_the_cluster_script_needs_a_token(tmp_path: Path) -> None:
    refused = run("head", str(tmp_path / "nodes"), str(tmp_path / "absent"))
    assert refused.returncode == 2
    assert "run 'cluster.sh token" in refused.stderr
