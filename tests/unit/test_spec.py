"""The job file: what is wrong is named with its key, its value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest

from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec

GOOD: dict[str, Any] = {"name": "a", "entrypoint": "m:f", "workers": {"max": 2}}
SERVERS = {"intra_node": "parameter_server", "inter_node": "parameter_server"}
LOCAL = {"intra_node": "local_sgd", "inter_node": "local_sgd"}
PUSHED = {"intra_node": "token_ring", "inter_node": "parameter_server"}
TOKENS = {"intra_node": "token_ring", "inter_node": "token_ring"}

WRONG = [
    ({"worker": {"min": 2}}, "/worker", "workers"),
    ({"workers": {"min": 3, "max": 2}}, "/workers", "min <= max"),
    ({"workers": {"min": "3"}}, "/workers/min", "integer"),
    (
        {"workers": {"min": 1, "max": 2, "gpus": 2}},
        "/workers/gpus",
        "allowed: gpus 1 and more workers, workers: {min: 2, max: 4, gpus: 1}",
    ),
    ({"workers": {"device": "tpu"}}, "/workers/device", "'auto', 'cuda' or 'cpu'"),
    ({"workers": {"device": "cuda"}}, "/workers/device", "cuda or auto with gpus 1"),
    ({"workers": {"device": "auto"}}, "/workers/device", "a worker has no GPU with gpus: 0"),
    ({"workers": {"device": "cpu", "gpus": 1}}, "/workers/device", "reserves a GPU with gpus: 1"),
    ({"servers": {"count": 2}}, "/servers/count", "servers is not used by ring"),
    ({"servers": {"cpus": 2.0}}, "/servers", "servers is not used by ring; allowed: leave it out"),
    ({"sync": "parameter_server", "servers": {"count": 0}}, "/servers/count", "greater than or equal to 1"),
    ({"sync": "parameter_server", "servers": {"gpus": 2}}, "/servers/gpus", "less than or equal to 1"),
    (
        {"sync": SERVERS | {"servers": 2}, "servers": {"count": 3}},
        "/servers/count",
        "servers.count (3) and sync.servers (2) contradict each other",
    ),
    ({"data": {"distribution": "copied"}}, "/data/distribution", "'sharded' or 'replicated'"),
    ({"data": "replicated"}, "/data", "a mapping with keys from distribution"),
    ({"data": {"order": "random"}}, "/data/order", "'auto', 'shuffled', 'row' or 'block'"),
    ({"data": {"order": "block", "window_blocks": 0}}, "/data/window_blocks", "1"),
    (
        {"data": {"order": "row", "window_blocks": 8}},
        "/data/window_blocks",
        "leave it out, or order: block or auto",
    ),
    ({"workers": {"min": True}}, "/workers/min", "integer"),
    ({"workers": {"cpus": "1"}}, "/workers/cpus", "number"),
    ({"workers": {"cpus": True}}, "/workers/cpus", "number"),
    ({"workers": {"max": 4}, "batch": {"logical_shards": 2}}, "", "logical_shards >= workers.max"),
    ({"workers": {"max": 4}, "batch": {"global_size": 2}}, "", "at least one row for every shard"),
    ({"entrypoint": "no_colon"}, "/entrypoint", "module:function"),
    ({"entrypoint": "os:abort\n"}, "/entrypoint", "module:function"),
    ({"env": {"A": "x\x00y"}}, "/env/A", "has a NUL character; allowed: text without NUL"),
    ({"env": {"1A": "x"}}, "/env/1A", "'1A' is not a valid variable name; allowed: letters, digits and '_'"),
    ({"sync": "rung"}, "/sync/intra_node", "'ring', 'parameter_server', 'local_sgd' or 'token_ring'"),
    (
        {"sync": {"intra_node": "ring", "inter_node": "local_sgd"}},
        "/sync/inter",
        "parameter_server, ring for each",
    ),
    ({"sync": {"intra_node": "local_sgd"}}, "/sync/intra_node", "the same for both"),
    ({"sync": {"inter_node": "local_sgd"}}, "/sync/inter_node", "the same for both"),
    ({"sync": SERVERS | {"inter_node": "local_sgd"}}, "/sync/inter_node", "the same for both"),
    (
        {"sync": SERVERS | {"servers": 1, "server_backups": 1}},
        "/sync/servers",
        "servers 2 or more, or leave servers out",
    ),
    (
        {"sync": SERVERS | {"backup_workers": 3}, "workers": {"max": 3}},
        "/sync/backup_workers",
        "fewer backup workers than workers",
    ),
    ({"sync": {"intra_node": "parameter_server", "algorithm": "ring"}}, "/sync", "leave it out"),
    ({"sync": {"inter_node": "parameter_server", "algorithm": "auto"}}, "/sync", "leave it out"),
    ({"sync": {"inter_node": "parameter_server", "codec": "int8"}}, "/sync", "or codec: none"),
    ({"sync": {"algorithm": "native", "reproducible": True}}, "/sync", "algorithm auto, direct, gather"),
    (
        {"sync": SERVERS | {"algorithm": "ring"}},
        "/sync",
        "leave it out",
    ),
    ({"sync": {"codec": "int8", "reproducible": True}}, "/sync", "codec none, or reproducible: false"),
    (
        {"sync": {"codec": "topk", "algorithm": "ring"}},
        "/sync",
        "auto or direct with this codec, or codec: none",
    ),
    ({"sync": {"codec": "fp16", "algorithm": "native"}}, "/sync", "auto or direct with this codec"),
    ({"precision": "fp8"}, "/precision", "'fp32', 'bf16' or 'fp16'"),
    (
        {"precision": "fp16", "sync": "local_sgd"},
        "/precision",
        "makes its own steps; allowed: precision bf16",
    ),
    ({"precision": "fp16", "sync": "token_ring"}, "/precision", "no two workers make the same update"),
    ({"precision": "fp16", "sync": {"inter_node": "token_ring"}}, "/precision", "precision bf16"),
    ({"precision": "fp16", "sync": SERVERS | {"consistency": "ssp"}}, "/precision", "synchronous servers"),
    ({"precision": "fp16", "sync": SERVERS | {"consistency": "async"}}, "/precision", "different scales"),
    (
        {"precision": "fp16", "sync": SERVERS | {"backup_workers": 1}, "workers": {"max": 3}},
        "/precision",
        "here workers compute single items",
    ),
    ({"precision": "fp16", "sync": {"codec": "int8"}}, "/precision", "codec: int8 carries residuals over"),
    ({"precision": "fp16", "sync": {"codec": "fp16"}}, "/precision", "codec none or bf16"),
    (
        {"sync": {"intra_node": "parameter_server", "inter_node": "parameter_server", "codec": "onebit"}},
        "/sync",
        "sync ring with this codec, or codec: none",
    ),
    ({"sync": {"codec": "int9"}}, "/sync/codec", "'int8'"),
    ({"sync": {"servers": 2}}, "/sync", "leave it out, or parameter_server"),
    ({"sync": SERVERS | {"servers": 0}}, "/sync/servers", "greater than or equal to 1"),
    ({"sync": SERVERS | {"server_backups": 2}}, "/sync/server_backups", "less than or equal to 1"),
    (
        {"sync": {"server_backups": 1}},
        "/sync",
        "server_backups is not used by ring; allowed: leave it out, or inter_node",
    ),
    (
        {"sync": {"intra_node": "parameter_server", "server_backups": 1}},
        "/sync",
        "servers are copies of each other",
    ),
    (
        {"sync": SERVERS | {"server_backups": 1, "backup_workers": 1, "servers": 3}},
        "/sync/backup_workers",
        "servers 2, or backup_workers 0",
    ),
    ({"sync": SERVERS | {"servers": 65}}, "/sync/servers", "less than or equal to 64"),
    ({"sync": SERVERS | {"servers": True}}, "/sync/servers", "integer"),
    ({"sync": {"consistency": "async"}}, "/sync", "consistency is not used by ring"),
    ({"sync": LOCAL | {"backup_workers": 1}}, "/sync", "backup_workers is not used by local_sgd"),
    ({"sync": SERVERS | {"consistency": "eventual"}}, "/sync/consistency", "'sync', 'ssp' or 'async'"),
    ({"sync": SERVERS | {"staleness": 2}}, "/sync", "leave it out, or consistency: ssp"),
    (
        {"sync": SERVERS | {"consistency": "async", "staleness": 2}},
        "/sync",
        "leave it out, or consistency: ssp",
    ),
    (
        {"sync": SERVERS | {"consistency": "ssp", "staleness": -1}},
        "/sync/staleness",
        "greater than or equal to 0",
    ),
    (
        {"sync": SERVERS | {"consistency": "ssp", "staleness": 65}},
        "/sync/staleness",
        "less than or equal to 64",
    ),
    ({"sync": SERVERS | {"consistency": "ssp", "backup_workers": 1}}, "/sync", "or consistency: sync"),
    ({"sync": SERVERS | {"backup_workers": 1, "servers": 2}}, "/sync", "servers 1, or backup_workers 0"),
    ({"sync": SERVERS | {"backup_workers": -1}}, "/sync/backup_workers", "greater than or equal to 0"),
    (
        {"sync": SERVERS | {"consistency": "async", "reproducible": True}},
        "/sync",
        "reproducible: true and consistency: async exclude each other",
    ),
    (
        {"sync": SERVERS | {"consistency": "ssp", "staleness": 1, "reproducible": True}},
        "/sync",
        "reproducible: true and staleness: 1 exclude each other",
    ),
    (
        {"sync": SERVERS | {"backup_workers": 2, "reproducible": True}},
        "/sync",
        "reproducible: true and backup_workers: 2 exclude each other",
    ),
    ({"sync": SERVERS | {"consistency": "ssp", "reproducible": False}}, "/sync", "leave it out"),
    ({"sync": {"inner_steps": 4}}, "/sync", "leave it out, or local_sgd"),
    ({"sync": {"outer": "average"}}, "/sync", "outer is not used by ring"),
    ({"sync": LOCAL | {"outer": "adam"}}, "/sync/outer", "'average' or 'nesterov'"),
    ({"sync": LOCAL | {"inner_steps": 0}}, "/sync/inner_steps", "greater than or equal to 1"),
    ({"sync": LOCAL | {"inner_steps": "8"}}, "/sync/inner_steps", "integer"),
    ({"sync": LOCAL | {"algorithm": "native"}}, "/sync", "algorithm auto, direct, gather"),
    ({"sync": LOCAL | {"reproducible": False}}, "/sync", "leave it out"),
    ({"sync": LOCAL | {"inner_steps": 1 << 18}, "workers": {"max": 2}}, "", "a product of at most"),
    ({"sync": TOKENS | {"reproducible": True}}, "/sync", "leave it out, or sync: ring"),
    ({"sync": TOKENS | {"algorithm": "ring"}}, "/sync", "algorithm is not used by token_ring"),
    ({"sync": TOKENS | {"codec": "bf16"}}, "/sync", "codec: none"),
    ({"sync": TOKENS | {"servers": 1}}, "/sync", "servers is not used by token_ring"),
    ({"sync": TOKENS | {"outer": "average"}}, "/sync", "outer is not used by token_ring"),
    ({"sync": TOKENS | {"tokens": 0}}, "/sync/tokens", "greater than or equal to 1"),
    ({"sync": TOKENS | {"staleness": -1}}, "/sync/staleness", "greater than or equal to 0"),
    ({"sync": {"tokens": 2}}, "/sync", "leave it out, or token_ring"),
    ({"sync": LOCAL | {"staleness": 2}}, "/sync", "staleness is not used by local_sgd"),
    (
        {"sync": {"intra_node": "token_ring", "inter_node": "local_sgd"}},
        "/sync/inter_node",
        "parameter_server/token_ring",
    ),
    (
        {"sync": {"inter_node": "token_ring", "servers": 1}},
        "/sync/servers",
        "servers is not used by token_ring/ring",
    ),
    (
        {"sync": {"inter_node": "token_ring", "algorithm": "ring"}},
        "/sync/algorithm",
        "algorithm is not used by token_ring",
    ),
    (
        {"sync": {"intra_node": "token_ring", "inter_node": "ring"}},
        "/sync/intra_node",
        "no common end of a batch; allowed: inter",
    ),
    (
        {"sync": PUSHED | {"consistency": "async"}},
        "/sync/consistency",
        "consistency is not used by parameter_server/token",
    ),
    (
        {"sync": PUSHED | {"reproducible": True}},
        "/sync/reproducible",
        "parameter_server/token_ring exclude each other",
    ),
    ({"sync": PUSHED | {"tokens": 1, "servers": 2}}, "/sync/tokens", "at least as many tokens as servers"),
    (
        {"sync": PUSHED | {"server_backups": 1}},
        "/sync/server_backups",
        "their tokens' weights without copies",
    ),
    (
        {"sync": PUSHED | {"codec": "int8"}},
        "/sync/codec",
        "codec: int8 and parameter_server/token_ring exclude",
    ),
    ({"max_runtime_s": 0}, "/max_runtime_s", "greater than or equal to 1"),
    ({"max_runtime_s": "5"}, "/max_runtime_s", "number"),
    ({"max_runtime_s": True}, "/max_runtime_s", "number"),
    ({"policy": {"stall_timeout_s": 0.9}}, "/policy/stall_timeout_s", "greater than or equal to 1"),
    ({"policy": {"stall_timeout_s": "5"}}, "/policy/stall_timeout_s", "number"),
    ({"policy": {"stall_timeout_s": float("inf")}}, "/policy/stall_timeout_s", "finite"),
    ({"framework": "lightning"}, "/framework", "'native', 'ray_train'"),
    (
        {"framework": "ray_train", "batch": {"schedule": [[5, 32]]}},
        "/batch/schedule",
        "leave it out, or framework: native",
    ),
    (
        {"framework": "auto", "data": {"skip": [[1, 2]]}},
        "/data/skip",
        "data.skip is not used with framework: auto",
    ),
    ({"entrypoint": "m..x:f"}, "/entrypoint", "module:function"),
    ({"entrypoint": "m.:f"}, "/entrypoint", "module:function"),
    ({"entrypoint": "m.1:f"}, "/entrypoint", "module:function"),
    ({"params": {"lr": float("nan")}}, "/params/lr", "finite"),
]


@pytest.mark.parametrize(("change", "pointer", "allowed"), WRONG, ids=lambda v: str(v)[:40])
def test_every_wrong_key_is_named_with_what_is_allowed(
    change: dict[str, Any], pointer: str, allowed: str
) -> None:
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.parse(GOOD | change)
    (finding,) = [e for e in caught.value.errors if e["pointer"].startswith(pointer)][:1]
    assert allowed in finding["allowed"] + finding["message"], finding
    assert not finding["allowed"].startswith("allowed")
    assert finding["pointer"] not in {"", "/sync", "/workers"}, "a key is named, not the part it is in"
    assert repr(finding["value"]) in repr(change)


@pytest.mark.parametrize("value", [None, 3, ["ring"]], ids=str)
def test_what_stands_for_a_part_is_named_with_what_may(value: Any) -> None:
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.parse(GOOD | {"sync": value})
    (finding,) = caught.value.errors
    assert (finding["pointer"], finding["value"]) == ("/sync", value)
    assert "one of ring, parameter_server, local_sgd, token_ring, or a mapping" in finding["allowed"]
    assert "codec" in finding["allowed"]
    assert ("null" if value is None else str(value)) in finding["message"]
    assert "Sync" not in finding["message"]


@pytest.mark.parametrize("uri", ["http://h/x", "s4://bucket", "checkpoints", "S3://bucket", "://x"])
def test_checkpoints_go_where_a_file_system_is_known(uri: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.parse(GOOD | {"checkpoint": {"uri": uri}})
    (finding,) = caught.value.errors
    assert (finding["pointer"], finding["value"]) == ("/checkpoint/uri", uri)
    assert "an absolute path, or abfs://" in finding["allowed"]
    for good in ("/data", "file:///data", "s3://bucket/folder", "gs://bucket"):
        assert JobSpec.parse(GOOD | {"checkpoint": {"uri": good}}).checkpoint.uri == good


MODES: list[tuple[Any, bool, str]] = [
    ("ring", True, ""),
    ("parameter_server", True, ""),
    ({"inter_node": "ring", "intra_node": "parameter_server"}, True, ""),
    ({"inter_node": "parameter_server", "intra_node": "ring"}, True, ""),
    ("local_sgd", True, ""),
    (SERVERS | {"consistency": "ssp"}, True, ""),
    (SERVERS | {"consistency": "ssp", "staleness": 0}, True, ""),
    (SERVERS | {"consistency": "ssp", "staleness": 2}, False, "staleness: 2"),
    (SERVERS | {"consistency": "async"}, False, "consistency: async"),
    (SERVERS | {"backup_workers": 1}, False, "backup_workers: 1"),
    ("token_ring", False, "token_ring"),
    ({"codec": "int8"}, False, "codec: int8"),
    ({"algorithm": "native"}, False, "algorithm: native"),
]


@pytest.mark.parametrize(("sync", "same_bits", "key"), MODES, ids=lambda v: str(v)[:50])
def test_each_mode_has_the_same_bits_or_refuses_to_promise_them(sync: Any, same_bits: bool, key: str) -> None:
    words = {"inter_node": sync, "intra_node": sync} if isinstance(sync, str) else sync
    left_out = JobSpec.parse(GOOD | {"sync": sync}).sync
    assert (left_out.same_bits, left_out.why_other_bits == "") == (same_bits, same_bits)
    if same_bits:
        assert JobSpec.parse(GOOD | {"sync": words | {"reproducible": True}}).sync.same_bits
        return
    assert key.partition(":")[0] in left_out.why_other_bits
    assert not JobSpec.parse(GOOD | {"sync": words | {"reproducible": False}}).sync.same_bits
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.parse(GOOD | {"sync": words | {"reproducible": True}})
    (finding,) = caught.value.errors
    assert (finding["pointer"], finding["value"]) == ("/sync/reproducible", True)
    assert f"reproducible: true and {key} exclude each other" in finding["message"]


def test_a_missing_key_is_named() -> None:
    with pytest.raises(SpecInvalid, match="/name"):
        JobSpec.parse({"entrypoint": "m:f"})


def test_what_is_no_mapping_or_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match="not a mapping"):
        JobSpec.parse(["a"])
    (tmp_path / "job.yaml").write_text("a: [")
    with pytest.raises(SpecInvalid):
        JobSpec.load(tmp_path / "job.yaml")


def test_one_word_sets_both_architectures() -> None:
    assert JobSpec.parse(GOOD).sync.server_count == 0
    assert JobSpec.parse(GOOD | {"sync": SERVERS | {"servers": 3}}).sync.server_count == 3
    assert JobSpec.parse(GOOD | {"sync": SERVERS | {"server_backups": 1}}).sync.server_count == 2
    assert (
        JobSpec.parse(GOOD | {"sync": SERVERS | {"server_backups": 1, "servers": 3}}).sync.server_count == 3
    )
    for leased in ({"consistency": "async"}, {"consistency": "ssp", "staleness": 2}, {"backup_workers": 1}):
        backed = JobSpec.parse(GOOD | {"sync": SERVERS | {"server_backups": 1} | leased}).sync
        assert (backed.server_count, backed.in_parts) == (2, False)
    for mixed in ({"inter_node": "parameter_server"}, {"intra_node": "parameter_server"}):
        assert JobSpec.parse(GOOD | {"sync": mixed | {"servers": 2}}).sync.server_count == 2
    spec = JobSpec.parse(GOOD | {"sync": "parameter_server"})
    assert spec.sync.server_count == 1
    assert spec.sync.intra_node == spec.sync.inter_node == "parameter_server"


def test_servers_have_their_own_number_and_need_and_no_gpu_unless_they_ask_for_one() -> None:
    asked = {"workers": {"max": 2, "cpus": 4, "gpus": 1, "memory_gb": 8.0}, "sync": "parameter_server"}

    def servers(**keys: Any) -> tuple[int, float, int, float]:
        spec = JobSpec.parse(GOOD | asked | ({"servers": keys} if keys else {}))
        assert JobSpec.parse(spec.model_dump(mode="json")) == spec
        each = spec.each_server
        return spec.sync.server_count, each.cpus, each.gpus, each.memory_gb

    assert servers() == (1, 4, 0, 8.0)
    assert servers(count=3, cpus=1, memory_gb=0.5) == (3, 1, 0, 0.5)
    assert servers(gpus=1) == (1, 4, 1, 8.0)
    same = JobSpec.parse(GOOD | {"sync": SERVERS | {"servers": 2}, "servers": {"count": 2}})
    assert same.sync.server_count == 2
    assert JobSpec.parse(GOOD | {"sync": SERVERS | {"servers": 2}}).sync.server_count == 2


def test_items_on_their_way_in_a_token_ring_are_bounded_unless_the_job_file_says_how_many() -> None:
    def bound(**keys: int) -> int:
        return JobSpec.parse(GOOD | {"sync": TOKENS | keys}).sync.token_staleness

    assert (bound(), bound(staleness=0), bound(staleness=64)) == (2, 0, 64)


def test_only_local_sgd_has_rounds_of_several_batches() -> None:
    ring, local = (JobSpec.parse(GOOD | {"sync": sync}).sync for sync in ("ring", "local_sgd"))
    assert (ring.round_steps, ring.outer_step) == (1, None)
    assert (local.round_steps, local.outer_step, local.same_bits) == (16, "average", True)
    given = JobSpec.parse(GOOD | {"sync": LOCAL | {"inner_steps": 500, "outer": "nesterov"}}).sync
    assert (given.round_steps, given.outer_step) == (500, "nesterov")


@pytest.mark.parametrize(
    ("sync", "same_bits"),
    [
        ({}, True),
        ({"algorithm": "direct"}, True),
        ({"algorithm": "native"}, False),
        ({"algorithm": "ring"}, False),
        ({"reproducible": False}, False),
        ({"codec": "none"}, True),
        ({"codec": "int8"}, False),
        ({"codec": "bf16", "algorithm": "direct"}, False),
        ("token_ring", False),
    ],
)
def test_same_bits_are_the_default_where_algorithm_and_codec_allow_them(
    sync: dict[str, Any], same_bits: bool
) -> None:
    assert JobSpec.parse(GOOD | {"sync": sync}).sync.same_bits is same_bits


def test_a_job_file_survives_the_wire() -> None:
    spec = JobSpec.parse(GOOD | {"workers": {"min": 1, "max": 3}, "params": {"lr": 0.1}})
    assert JobSpec.parse(spec.model_dump(mode="json")) == spec


def test_a_job_file_without_a_framework_has_a_function_that_takes_the_session() -> None:
    assert JobSpec.parse(GOOD, stored=True).framework == "native"
    assert JobSpec.parse(GOOD | {"framework": "ray_train"}).framework == "ray_train"


def test_a_refused_codec_names_both_keys_and_the_reason() -> None:
    for sync, reason in [
        ({"codec": "topk", "reproducible": True}, "reproducible: true and codec: topk exclude each other"),
        ({"codec": "topk", "algorithm": "ring"}, "codec: topk and algorithm: ring exclude each other"),
    ]:
        with pytest.raises(SpecInvalid, match=reason):
            JobSpec.parse(GOOD | {"sync": sync})


@pytest.mark.parametrize("module", ["m", "m.x", "a_b.c1._d"])
def test_an_entrypoint_may_be_in_a_package(module: str) -> None:
    assert JobSpec.parse(GOOD | {"entrypoint": f"{module}:f"}).entrypoint == f"{module}:f"


def test_only_what_has_one_order_of_sums_has_the_same_bits() -> None:
    def sync(**keys: Any) -> Any:
        return JobSpec.parse(GOOD | {"sync": SERVERS | keys}).sync

    assert [sync(**keys).same_bits for keys in ({}, {"consistency": "ssp"}, {"backup_workers": 0})] == [
        True
    ] * 3
    for keys in ({"consistency": "async"}, {"consistency": "ssp", "staleness": 1}, {"backup_workers": 1}):
        assert not sync(**keys).same_bits
        assert next(iter(keys)) in sync(**keys).why_other_bits or "staleness" in sync(**keys).why_other_bits
    leased = [sync(**keys).leased for keys in ({}, {"consistency": "sync"}, {"consistency": "ssp"})]
    assert leased == [False, False, True]
