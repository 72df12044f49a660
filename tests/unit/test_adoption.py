"""What a function of Ray Train does that a session cannot keep, found by its text before a job is packed."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ringleader.errors import SpecInvalid
from ringleader.parsing import parse
from ringleader.spec import JobSpec
from ringleader.spec.program.adoption import framework_of, obstacles
from ringleader.spec.program.entrypoint import check_entrypoint, with_framework
from ringleader.train.run import function_of

USUAL = """
import torch
import ray.train
import ray.train.torch

def train_func(config):
    loader = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(rows, 8))
    for epoch in range(2):
        for batch in loader:
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ray.train.report({"loss": 1.0})
"""


def found(text: str) -> list[str]:
    return [obstacle.what for obstacle in obstacles(parse(dedent(text)), "train_func")]


def test_a_usual_function_has_nothing_that_cannot_be_kept() -> None:
    assert found(USUAL) == []


@pytest.mark.parametrize(
    ("line", "instead", "told"),
    [
        ("import torch\n", "import torch\nimport torch.distributed as dist\n", None),
        (
            "loss.backward()",
            "loss.backward()\n            dist.all_reduce(loss)",
            "dist.all_reduce: collectives",
        ),
        ("loss.backward()", "loss.backward()\n            other.backward()", "several backwards in one turn"),
        (
            "loss.backward()",
            "loss.backward()\n            for p in net.parameters():\n                p.grad.mul_(0.5)",
            "p.grad: no worker has the whole gradient",
        ),
        ("loss.backward()", "torch.autograd.grad(loss, x)\n            loss.backward()", None),
        (
            "optimizer.step()\n",
            "optimizer.step()\n            ray.train.report({})\n",
            "report in a training loop",
        ),
        (
            "    loader =",
            "    ray.train.torch.prepare_model(model, parallel_strategy='fsdp')\n    loader =",
            "FSDP",
        ),
        (
            "    loader =",
            "    net = torch.nn.parallel.DistributedDataParallel(net)\n    loader =",
            "needs a process group",
        ),
        (
            "    loader =",
            "    scaler = torch.amp.GradScaler()\n    loader =",
            "torch.amp.GradScaler reads gradients",
        ),
        ("(rows, 8)", "(Rows(), 8)", None),
    ],
)
def test_each_thing_is_named(line: str, instead: str, told: str | None) -> None:
    text = USUAL.replace("import torch\n", "import torch\nimport torch.distributed as dist\n")
    assert line in text
    changed = found(text.replace(line, instead, 1))
    assert changed == [] if told is None else told in changed[0], changed


def test_what_the_function_does_not_reach_is_its_own_business() -> None:
    unused = "\n\ndef other():\n    torch.distributed.barrier()\n"
    assert found(USUAL + unused) == []
    assert len(found(USUAL.replace("    loader =", "    other()\n    loader =") + unused)) == 1
    stream = "\n\nclass Rows(torch.utils.data.IterableDataset):\n    pass\n"
    assert found(USUAL + stream) == []
    assert "IterableDataset" in found(USUAL.replace("rows", "Rows()") + stream)[0]


def test_one_backward_in_each_branch_is_one() -> None:
    branches = (
        "if a:\n                loss.backward()\n            else:\n                (2 * loss).backward()"
    )
    assert found(USUAL.replace("loss.backward()", branches)) == []


def test_auto_goes_by_the_imports_of_the_module() -> None:
    assert framework_of("auto", parse(USUAL)) == "ray_train"
    assert framework_of("auto", parse("from ray.train import report")) == "ray_train"
    assert framework_of("auto", parse("import ray")) == "native"
    assert framework_of("native", parse(USUAL)) == "native"


def check(framework: str, text: str, folder: Path) -> None:
    (folder / "module.py").write_text(dedent(text))
    spec = JobSpec.parse({"name": "a", "entrypoint": "module:train_func", "framework": framework})
    assert check_entrypoint(spec, folder)


@pytest.mark.parametrize("framework", ["ray_train", "auto"])
def test_a_function_may_take_its_configuration_or_nothing(framework: str, tmp_path: Path) -> None:
    check(framework, USUAL, tmp_path)
    check(framework, USUAL.replace("(config)", "()"), tmp_path)
    with pytest.raises(
        SpecInvalid, match=r"besides the configuration: more; allowed: a function of Ray Train"
    ):
        check(framework, USUAL.replace("(config)", "(config, more)"), tmp_path)


def test_a_refusal_names_file_line_and_cure(tmp_path: Path) -> None:
    twice = USUAL.replace("loss.backward()", "loss.backward()\n            other.backward()")
    told = r"module\.py does what a session cannot keep: line 9: several backwards.*add the losses up"
    with pytest.raises(SpecInvalid, match=told):
        check("ray_train", twice, tmp_path)
    # On a worker, for jobs whose text nobody saw when they were submitted.
    with pytest.raises(SpecInvalid, match="ray_train_hosted, which would run it as it is: line 9"):
        check("auto", twice, tmp_path)


def chosen(folder: Path, text: str, entrypoint: str = "module:train_func", **keys: Any) -> JobSpec:
    (folder / "module.py").write_text(dedent(text))
    source = {"name": "a", "entrypoint": entrypoint, "framework": "auto", "working_dir": "."}
    return with_framework(JobSpec.parse(source | keys), folder)


BACKWARD = "            loss.backward()\n"
SCRIPT = """
from torch import distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
"""


@pytest.mark.parametrize(
    ("line", "instead", "why"),
    [
        (BACKWARD, f"{BACKWARD}            torch.distributed.all_reduce(loss)\n", "collectives of its own"),
        (BACKWARD, BACKWARD + BACKWARD, "line 9: several backwards in one turn"),
        ("model(batch)", "torch.distributed.fsdp.fully_shard(model)(batch)", "FSDP splits the model"),
        ("DataLoader(rows, 8)", "IterableDataset()", "an IterableDataset, whose rows have no positions"),
    ],
)
def test_auto_has_ray_train_itself_run_what_a_session_cannot_keep(
    line: str, instead: str, why: str, tmp_path: Path
) -> None:
    assert line in USUAL
    spec = chosen(tmp_path, USUAL.replace(line, instead, 1))
    assert spec.framework == "ray_train_hosted"
    assert spec.framework_why is not None
    assert spec.framework_why.startswith("a session cannot keep what train_func does: line ")
    assert why in spec.framework_why
    assert JobSpec.parse(spec.model_dump(mode="json"), stored=True) == spec


def test_auto_says_what_it_has_chosen_and_why(tmp_path: Path) -> None:
    adopted = chosen(tmp_path, USUAL)
    assert (adopted.framework, adopted.framework_why) == (
        "ray_train",
        "the module imports ray.train, and a session keeps what train_func does",
    )
    native = chosen(tmp_path, "def train_func(session): pass")
    assert (native.framework, native.framework_why) == (
        "native",
        "the module imports nothing of ray.train",
    )
    script = chosen(tmp_path, SCRIPT, "module.py --epochs 3")
    assert (script.framework, script.framework_why) == (
        "torchrun",
        "line 5 makes a process group: dist.init_process_group",
    )
    named = JobSpec.parse({"name": "a", "entrypoint": "module:train_func", "framework": "ray_train"})
    assert with_framework(named, tmp_path) is named


def test_auto_leaves_open_what_is_not_there_to_read(tmp_path: Path) -> None:
    installed = JobSpec.parse({"name": "a", "entrypoint": "elsewhere:train", "framework": "auto"})
    assert with_framework(installed, tmp_path).framework == "auto"
    assert with_framework(installed, None).framework == "auto"


def test_a_node_refuses_keys_that_what_it_chooses_does_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "found_here.py").write_text("def train(session):\n    pass\n")
    given = {"name": "a", "entrypoint": "found_here:train", "framework": "auto"}
    spec = JobSpec.parse(given | {"data": {"sets": {"train": "/data/a.parquet"}}})
    told = "auto chooses native, because .*found_here.py on the node. So data.sets is not used with framework: native"
    with pytest.raises(SpecInvalid, match=told):
        function_of(spec)


def test_auto_starts_no_script_several_times_that_makes_no_process_group(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match=r"init_process_group; allowed: framework: torchrun"):
        chosen(tmp_path, "print(1)", "module.py")
    with pytest.raises(SpecInvalid, match=r"there is no file other\.py"):
        chosen(tmp_path, SCRIPT, "other.py")


def test_a_key_that_the_choice_has_no_use_for_is_refused_with_the_choice(tmp_path: Path) -> None:
    twice = USUAL.replace(BACKWARD, BACKWARD + BACKWARD)
    told = r"auto chooses ray_train_hosted, because .*line 9: several backwards.* So batch.global_size is not used"
    with pytest.raises(SpecInvalid, match=told):
        chosen(tmp_path, twice, batch={"global_size": 32})


def test_auto_takes_a_function_of_the_session(tmp_path: Path) -> None:
    check("auto", "def train_func(session):\n    pass\n", tmp_path)
    with pytest.raises(SpecInvalid, match="takes no parameters; allowed: a function that takes the session"):
        check("auto", "def train_func():\n    pass\n", tmp_path)
