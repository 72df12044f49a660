"""What each key of the job file means, in words: the models say the rest. A test holds the two together."""

WORDS: dict[str, str] = {
    "name": "The job's name. Several jobs may have the same; commands take the newest of them, and say so.",
    "entrypoint": "The training function as `module:function`, in `working_dir` or in an installed package. With "
    "`framework: torchrun` a script in `working_dir` with its arguments, which no shell reads.",
    "framework": "The library that the entrypoint is written for. `native`: it takes the session. `ray_train`: it is "
    "a function of Ray Train, run by this engine with `params` as `train_loop_config`. `torchrun`: a script, run as it "
    "is, which restarts from what it saves itself. `ray_train_hosted`: the same for a function of Ray Train, with a "
    "real `TorchTrainer`. `auto`: chosen by the program's text when the job is submitted: a function of Ray Train as "
    "`ray_train` where a session keeps what it does, and else as `ray_train_hosted`; `torchrun` for a script that "
    "makes a process group; else `native`.",
    "framework_why": "Why the framework was chosen where the job file says `auto`: written by `ringleader submit`, or "
    "by the control plane when a node has chosen.",
    "working_dir": "The folder that is packed and uploaded, relative to the job file. Left out: nothing "
    "is uploaded.",
    "requirements": "Packages of the job: a file of pinned packages in the working directory, or a list of "
    "`name==version`. Each node installs them once; the engine's own are never replaced.",
    "params": "What the program reads as `session.params`.",
    "labels": "Words to find the job by.",
    "env": "Environment variables of the program's processes.",
    "secrets": "Environment variables whose values are secrets of the project, by their names. None may "
    "be in `env` too.",
    "workers": "The workers: see [workers](#workers).",
    "servers": "The parameter servers: see [servers](#servers).",
    "autoscale": "See [autoscale](#autoscale).",
    "batch": "See [batch](#batch).",
    "sync": "How workers are kept in step: one word for both levels, or the keys of [sync](#sync).",
    "precision": "The arithmetic of forward and backward; weights and updates stay in 32 bits. `fp16` "
    "scales the loss, and needs one scale for all gradients of an update.",
    "data": "See [data](#data).",
    "checkpoint": "See [checkpoint](#checkpoint).",
    "init_from": "The weights and buffers to begin with: the id of a job, or the path or URI of a "
    "checkpoint or a weights file. Optimizers and schedules begin anew.",
    "init_optimizers": "With `init_from`: optimizers go on with the states of a succeeded job's last checkpoint.",
    "seed": "What every random number follows from: first weights, the order of rows, dropout.",
    "project": "The project that it counts towards, whose secrets it may name and whose members may see it.",
    "priority": "Of the jobs that wait, a higher one is served first, and may preempt a lower one. Above "
    "0 it takes the role operator.",
    "max_failures": "The failure budget. Planned changes, preemptions and lost nodes spend none of it; "
    "ten committed steps give one back. A hosted program that fails spends one, too.",
    "max_runtime_s": "The running time of all attempts together, in seconds, after which the job fails. "
    "Jobs that say it can be let go before others.",
    "policy": "See [policy](#policy).",
    "debug": "See [debug](#debug).",
    "alerts": "Who is told when something happens to the job: rules, each with `name`, `when` and `channels`. "
    "[Get alerts](../how-to/get-alerts.md).",
    "register": "The model in MLflow's registry of which the final weights become a version. "
    "[Share results](../how-to/share-results.md).",
    "workers.min": "The gang: so many start together or not at all, and fewer do not train.",
    "workers.max": "As many at most; those above `min` come and go with the room there is.",
    "workers.cpus": "CPUs that each reserves; as many threads compute in it, at least one.",
    "workers.gpus": "GPUs that each reserves: 0 or 1, as a worker computes on one device; more workers use more.",
    "workers.memory_gb": "Memory that each reserves, in GB.",
    "workers.placement": "On few nodes, or on different ones.",
    "workers.device": "What it computes on. Left out: `cuda` with a GPU, `cpu` without. `auto` takes the "
    "CPU where a node has no CUDA device, which fails the job otherwise.",
    "servers.count": "The number of parameter servers, as `sync.servers`: one of the two, or both the same.",
    "servers.cpus": "CPUs of each server. Left out: those of a worker.",
    "servers.gpus": "GPUs of each server. Without one it keeps and updates the weights in host memory.",
    "servers.memory_gb": "Memory of each server, in GB. Left out: that of a worker.",
    "autoscale.surplus": "Have the autoscaler asked for nodes up to `workers.max`; without it workers above "
    "`workers.min` use free places only.",
    "batch.global_size": "Rows of one step over all workers. The last batch of an epoch may be shorter.",
    "batch.schedule": "Other sizes of the batch from later steps on, as `[step, rows]`: `[[500, 128], [2000, 256]]` "
    "has 128 rows behind 500 committed steps. Not where a step's rows depend on who comes first (`async`, "
    "backup workers, token rings).",
    "batch.logical_shards": "The fixed parts of every batch, L, constant for the job's life. Left out: "
    "`workers.max`. Never fewer than `workers.max`, never more than `global_size`.",
    "sync.intra_node": "The mode inside a node.",
    "sync.inter_node": "The mode between nodes.",
    "sync.algorithm": "The schedule that sums gradients; `auto` (and left out) has it chosen by size and "
    "network.",
    "sync.reproducible": "Whether the final weights may not depend on who computed what. Left out: true "
    "where the mode can keep it. `false` lets a worker's slices run as one.",
    "sync.codec": "The encoding of gradients on their way.",
    "sync.servers": "The number of parameter servers. Left out: 1, or 2 with `server_backups: 1`.",
    "sync.server_backups": "Whether each part of the weights has a backup on another server.",
    "sync.consistency": "When servers update: each batch as a whole (`sync`, and left out), bounded "
    "(`ssp`), or each item as it comes (`async`).",
    "sync.backup_workers": "So many spare workers: an update is made of the first gradients of its "
    "version, and waits for no straggler. Left out: 0.",
    "sync.inner_steps": "Batches of a local SGD round. Left out: 16.",
    "sync.outer": "How a round combines the replicas: their mean (and left out), or DiLoCo's Nesterov "
    "momentum.",
    "sync.tokens": "Parts that the weights are cut into, each of which travels round the ring. Left out: "
    "`workers.max`.",
    "sync.staleness": "With `ssp`: how many updates old the weights may be that an item is computed on. With "
    "`token_ring`: rounds that a worker may have in flight when it begins another; left out: 2.",
    "data.distribution": "Whether workers read files of data sets from the source, or from a copy of the "
    "whole on their node.",
    "data.order": "How `session.batches` shuffles. `auto`: files as `block`, in windows of at most 1 GiB together, and "
    "everything else as `shuffled`. `shuffled`: all rows, by a list of them. `row`: all rows, without a "
    "list. `block`: blocks of files (row groups), and rows within windows of them, so that a block is read once an "
    "epoch. Each is a function of the seed and the epoch.",
    "data.window_blocks": "Where rows are shuffled by blocks: blocks of a window. Left out: 16; with `order: auto` "
    "fewer where blocks are large.",
    "data.sets": "Files by the names that `ray.train.get_dataset_shard` gives them by, with `framework: ray_train`: a "
    "path or URI of Parquet, Arrow IPC, JSONL, WebDataset tars or MDS, for each.",
    "data.skip": "Steps that are left out, as [first, last] by the numbers that charts and the row ledger of a job "
    "without it have: their rows are not computed, and all other steps keep theirs.",
    "checkpoint.every_steps": "A checkpoint after so many committed steps; `null`: not by steps, and by "
    "time only where `every_s` is given.",
    "checkpoint.every_s": "A checkpoint before more seconds of work than this are at risk; `null`: not by "
    "time. Copies take a hundredth of training at most, and come more seldom where they would take more.",
    "checkpoint.keep": "So many are kept, the newest.",
    "checkpoint.uri": "Where they are written: an absolute path that all nodes see, or a URI. Left out: "
    "`checkpoints` in `RINGLEADER_HOME`.",
    "policy.evict_slow": "Have a straggler leave between two steps, and another take its place.",
    "policy.stall_timeout_s": "A worker that sends heartbeats but makes no progress for so long is "
    "evicted; it is told of before.",
    "debug.ledger": "Write the row ledger: a Parquet file of (step, shard, row) of every settled row.",
    "debug.trace": "Write a timeline of the steps, as the artifact `trace.json`.",
    "debug.faults": "Allow faults to be injected into this job.",
    "debug.check": "Check the program beside the job, ten seconds after its first step.",
}
