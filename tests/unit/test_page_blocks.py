"""No code block of a page goes unread: programs run, job files are parsed, commands are those that exist.

Behind the language stands which test has it. `python` alone and `python run` are run here, in an empty folder, those of
a page one behind the other; `yaml` alone and `yaml part` are keys of a job file. Blocks with `tour` are run by
`e2e/test_readme.py` against a running stack; in the others of `bash` each command has to be one that is known here.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from pages import ROOT, Block, all_blocks, all_pages, blocks_of

from ringleader.bench.registry import BENCHMARKS
from ringleader.cli.main import cli
from ringleader.spec import JobSpec
from ringleader.spec.sweep import SweepSpec

LIBRARIES = {"accelerate", "transformers", "trl", "lightning", "fabric"}
OF_RAY = {"ray_train", "ray_train_local"}
RUN_ELSEWHERE = {"setup", "yours", "train", "local", "recipe", "tour", *LIBRARIES, *OF_RAY}
PARSED_ELSEWHERE = {"recipe", "sweep"}
DRAWN = {"text"}
ONLY_ON = {
    "recipe": "jobs/README.md",
    "yours": "docs/port-your-script.md",
    "local": "docs/port-your-script.md",
    **dict.fromkeys(LIBRARIES, "docs/how-to/bring-training-code.md"),
    **dict.fromkeys(OF_RAY, "docs/how-to/run-ray-train.md"),
}
"""Words whose test reads one page."""
BESIDE = {"setup": "train", "file": "tour"}
"""Words of blocks that run with those of another word on their page."""
OF_THE_SYSTEM = {".", "cp", "docker", "export", "useradd"}
COMMENT = re.compile(r"(^|\s)#.*")
RUN = [
    page
    for page in all_pages()
    if any(block.language == "python" and not set(block.words) - {"run"} for block in blocks_of(page))
]


def test_every_block_is_of_a_kind_that_is_run_or_read() -> None:
    languages = {"python", "yaml", "bash", *DRAWN}
    left = [
        str(block) for page in all_pages() for block in blocks_of(page) if block.language not in languages
    ]
    words = {"run", "part", "job", "curl", *RUN_ELSEWHERE, *PARSED_ELSEWHERE}
    left += [
        str(block)
        for page in all_pages()
        for block in blocks_of(page)
        if {word for word in block.words if not word.startswith("file=")} - words
    ]
    assert left == []


def test_the_word_of_a_block_is_one_whose_test_reads_its_page() -> None:
    for page in all_pages():
        words = {word.partition("=")[0] for block in blocks_of(page) for word in block.words}
        assert all(ONLY_ON.get(word, page) == page for word in words), page
        assert all(other in words for word, other in BESIDE.items() if word in words), page


@pytest.mark.parametrize("page", RUN)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    code = "\n".join(
        block.text
        for block in blocks_of(page)
        if block.language == "python" and not set(block.words) - {"run"}
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "block", [block for block in all_blocks("yaml") if not set(block.words) & PARSED_ELSEWHERE], ids=str
)
def test_the_keys_of_a_job_file_are_valid(block: Block) -> None:
    keys = yaml.safe_load(block.text)
    if not block.file and "job" not in block.words:
        keys = {"name": "shown", "entrypoint": "shown:train", **keys}
    JobSpec.parse(keys)


@pytest.mark.parametrize("block", [block for block in all_blocks("yaml") if "sweep" in block.words], ids=str)
def test_a_sweep_file_is_valid(block: Block) -> None:
    sweep = SweepSpec.parse(yaml.safe_load(block.text))
    JobSpec.parse(sweep.job_file(0, {}))


@pytest.mark.parametrize(
    "block", [block for block in all_blocks("bash") if "tour" not in block.words], ids=str
)
def test_the_commands_of_a_page_exist(block: Block) -> None:
    for words in commands(block.text):
        match words:
            case ["ringleader", "bench", name, *_]:
                assert name in {*BENCHMARKS, "--help"}, words
            case ["ringleader", *arguments]:
                check_command(cli, arguments)
            case ["make", *targets]:
                known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
                assert set(targets) <= set(known), words
            case ["python", "-m", module, *_]:
                assert (ROOT / "platform" / f"{module.replace('.', '/')}.py").exists(), words
            case [program, *_]:
                assert program in OF_THE_SYSTEM or (ROOT / program).is_file(), words


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell text, word by word, without comments, redirections and variables set for one."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"\||&&|;", COMMENT.sub("", line)):
            words = shlex.split(part.split("<")[0].split(">")[0])
            while words and re.fullmatch(r"\w+=\S*", words[0]):
                words.pop(0)
            if words:
                yield words


def check_command(command: click.Command, arguments: list[str]) -> None:
    """Fails where a command, an option or a number of arguments is none of ours; values are not looked at."""
    context = click.Context(command, info_name=command.name)
    if isinstance(command, click.Group):
        if not arguments and command.invoke_without_command:
            return
        assert arguments, f"{command.name} of what?"
        found = command.get_command(context, arguments[0])
        assert found is not None, f"{command.name} {arguments[0]}"
        check_command(found, arguments[1:])
        return
    _, left, _ = command.make_parser(context).parse_args(list(arguments))
    assert left == [], f"{command.name} {arguments}"
    needed = sum(isinstance(parameter, click.Argument) and parameter.required for parameter in command.params)
    assert sum(not word.startswith("-") for word in arguments) >= needed, f"{command.name} {arguments}"
