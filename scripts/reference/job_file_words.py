"""The meaning of each key of the job file, in words: the models say the rest. A test keeps the two together."""

WORDS: dict[str, str] = {
    "name": "The job's name. Several jobs may share a name; commands then take the newest of them, and say so.",
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
    "working_dir": "The folder that is packed and uploaded, relative to the job file. Default: nothing "
    "is uploaded.",
    "requirements": "The job's packages: a file of pinned packages in the working directory, or a list of "
    "`name==version`. Each node installs them once; packages of the engine are never replaced.",
    "params": "Parameters that the program reads as `session.params`.",
    "labels": "Key-value pairs to find the job by.",
    "env": "Environment variables of the program's processes.",
    "secrets": "Environment variables and, for each, the name of the project's secret that is its value. "
    "A variable may not be in `env` too.",
    "workers": "The workers: see [workers](#workers).",
    "servers": "The parameter servers: see [servers](#servers).",
    "autoscale": "See [autoscale](#autoscale).",
    "batch": "See [batch](#batch).",
    "sync": "How workers are kept in step: one word for both levels, or the keys of [sync](#sync).",
    "precision": "The arithmetic of the forward and backward pass; weights and updates stay in 32 bits. `fp16` "
    "scales the loss, with one scale for all gradients of an update.",
    "data": "See [data](#data).",
    "checkpoint": "See [checkpoint](#checkpoint).",
    "init_from": "The weights and buffers to start from: the id of a job, or the path or URI of a "
    "checkpoint or a weights file. Optimizers and schedules start afresh.",
    "init_optimizers": "With `init_from`: also load the optimizers' states from a succeeded job's last checkpoint.",
    "seed": "The seed of all random numbers: initial weights, the order of rows, dropout.",
    "project": "The project of the job: its quota applies, its secrets can be used, and its members can see the job.",
    "priority": "Waiting jobs with a higher priority start first, and may preempt running jobs with a lower one. "
    "Above 0 it requires the role operator.",
    "max_failures": "The failure budget. Planned changes, preemptions and lost nodes do not count; "
    "ten committed steps give one failure back. A failure of a hosted program counts, too.",
    "max_runtime_s": "The total running time of all attempts, in seconds, after which the job fails. "
    "A job that sets it may start ahead of its turn.",
    "policy": "See [policy](#policy).",
    "debug": "See [debug](#debug).",
    "alerts": "Rules for alerts when something happens to the job, each with `name`, `when` and `channels`. "
    "[Get alerts](../how-to/get-alerts.md).",
    "register": "The model in MLflow's registry; the final weights are registered as a new version of it. "
    "[Share results](../how-to/share-results.md).",
    "workers.min": "The minimum number of workers. They start together or not at all, and fewer do not train.",
    "workers.max": "The maximum number of workers. Those above `min` come and go with free capacity.",
    "workers.cpus": "CPUs reserved for each worker, which computes with as many threads, at least one.",
    "workers.gpus": "GPUs reserved for each worker: 0 or 1, as a worker computes on one device. To use more GPUs, use "
    "more workers.",
    "workers.memory_gb": "Memory reserved for each worker, in GB.",
    "workers.placement": "Whether workers are placed on as few nodes as possible, or spread over nodes.",
    "workers.device": "The device that a worker computes on. Default: `cuda` with a GPU, `cpu` without. `auto` "
    "uses the CPU on a node without a CUDA device; otherwise such a node fails the job.",
    "servers.count": "The number of parameter servers, the same as `sync.servers`: give one, or both alike.",
    "servers.cpus": "CPUs reserved for each server. Default: those of a worker.",
    "servers.gpus": "GPUs reserved for each server. Without one it keeps and updates the weights in host memory.",
    "servers.memory_gb": "Memory reserved for each server, in GB. Default: that of a worker.",
    "autoscale.surplus": "Whether to ask the autoscaler for nodes up to `workers.max`. Otherwise workers above "
    "`workers.min` only use capacity that is free.",
    "batch.global_size": "Rows of one step, over all workers together. The last batch of an epoch may be shorter.",
    "batch.schedule": "Changes of the batch size at later steps, as `[step, rows]`: with `[[500, 128], [2000, 256]]` "
    "batches have 128 rows after 500 committed steps. Refused where a step's rows depend on who comes first (`async`, "
    "backup workers, token rings).",
    "batch.logical_shards": "The number L of fixed parts of every batch, constant for the job's life. Default: "
    "`workers.max`. At least `workers.max`, at most `global_size`.",
    "sync.intra_node": "The mode inside a node.",
    "sync.inter_node": "The mode between nodes.",
    "sync.algorithm": "The schedule that sums gradients. `auto`, the default, chooses by size and network.",
    "sync.reproducible": "Whether the final weights must not depend on which worker computed what. Default: true "
    "where the mode supports it. With `false` a worker may compute its slices as one.",
    "sync.codec": "The encoding of gradients in transit.",
    "sync.servers": "The number of parameter servers. Default: 1, or 2 with `server_backups: 1`.",
    "sync.server_backups": "Whether each part of the weights has a backup on another server.",
    "sync.consistency": "When servers update: after each whole batch (`sync`, the default), with bounded staleness "
    "(`ssp`), or on each item as it arrives (`async`).",
    "sync.backup_workers": "The number of spare workers: an update uses the first gradients of its version to "
    "arrive and does not wait for stragglers. Default: 0.",
    "sync.inner_steps": "The number of batches in a local SGD round. Default: 16.",
    "sync.outer": "How a round combines the replicas: their mean (the default), or DiLoCo's Nesterov "
    "momentum.",
    "sync.tokens": "The number of parts of the weights, each of which travels around the ring. Default: "
    "`workers.max`.",
    "sync.staleness": "With `ssp`: by how many updates the weights that an item is computed on may be out of date. "
    "With `token_ring`: the rounds that a worker may have in flight when it begins another; default: 2.",
    "data.distribution": "Whether workers read files of data sets from the source, or from a copy of the "
    "whole on their node.",
    "data.order": "How `session.batches` shuffles. `auto`: files as `block`, in windows of at most 1 GiB together, and "
    "everything else as `shuffled`. `shuffled`: all rows, by a list of them. `row`: all rows, without a "
    "list. `block`: blocks of files (row groups), and rows within windows of them, so that a block is read once an "
    "epoch. Each is a function of the seed and the epoch.",
    "data.window_blocks": "The number of blocks in a window, where rows are shuffled by blocks. Default: 16; with "
    "`order: auto` fewer where blocks are large.",
    "data.sets": "Data sets by the names that the program passes to `ray.train.get_dataset_shard`, with "
    "`framework: ray_train`: a path or URI of Parquet, Arrow IPC, JSONL, WebDataset tars or MDS, for each.",
    "data.skip": "Steps to leave out, as [first, last], numbered as in the charts and the row ledger of a job without "
    "`skip`. Their rows are not computed, and all other steps keep their rows.",
    "checkpoint.every_steps": "The number of committed steps between checkpoints. `null`: not by steps, and by "
    "time only if `every_s` is given.",
    "checkpoint.every_s": "The most seconds of work at risk before another checkpoint is written; `null`: not by "
    "time. Copies take at most a hundredth of training time; if they would take more, they are made less often.",
    "checkpoint.keep": "The number of checkpoints that are kept, the newest.",
    "checkpoint.uri": "Where checkpoints are written: an absolute path that all nodes see, or a URI. Default: "
    "`checkpoints` in `RINGLEADER_HOME`.",
    "policy.evict_slow": "Whether a straggler is removed between two steps and replaced by another worker.",
    "policy.stall_timeout_s": "A worker that sends heartbeats but makes no progress for this long is "
    "evicted. It is reported as stalled before that.",
    "debug.ledger": "Whether to write the row ledger: a Parquet file of (step, shard, row) of every settled row.",
    "debug.trace": "Whether to write a timeline of the steps, as the artifact `trace.json`.",
    "debug.faults": "Whether faults may be injected into this job.",
    "debug.check": "Whether the program check runs beside the job, ten seconds after its first step.",
}
