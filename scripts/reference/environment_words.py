"""Environment variables in words: those that anything here reads, but for the control plane's settings, whose words
are in the docstring of `ringleader_api.settings.Settings`. A test holds this and the code together."""

USERS: dict[str, str] = {
    "RINGLEADER_URL": "The address of the control plane, for the SDK and the command line. Left out: that "
    "of the profile which `ringleader up` wrote.",
    "RINGLEADER_TOKEN": "The credential for it.",
    "RINGLEADER_HOME": "The folder of a control plane: token, database, packages, checkpoints, artifacts, "
    "and the profile. Left out: `~/.ringleader`.",
    "LANG": "The locale. `C` and `POSIX`: the command line draws with ASCII alone.",
    "LC_ALL": "The same, before all others.",
    "LC_CTYPE": "The same, before LANG.",
}
NODES: dict[str, str] = {
    "RINGLEADER_SCRATCH": "In the environment of a node's `ray start`: a folder of its own disk with room "
    "for copies of data sets. Left out: the folder for temporary files.",
    "TORCHINDUCTOR_CACHE_DIR": "The folder of compiled models' code, which is run: private to the account. Left out: "
    "one below `RINGLEADER_SCRATCH`.",
    "CXX": "The C++ compiler for `session.model(net, compile=True)`. Left out: `g++`.",
    "RAY_AUTH_TOKEN": "The token of a Ray cluster, itself.",
    "RAY_AUTH_TOKEN_PATH": "The file with the token of a Ray cluster.",
    "RAY_AUTH_MODE": "Whether Ray asks for a token. Left out: `token` where there is one.",
    "RAY_USAGE_STATS_ENABLED": "Whether Ray reports its use. Left out: `0`.",
    "JE_ARROW_MALLOC_CONF": "Arrow's memory: without threads of its own where nothing else is said, so "
    "that workers can be forked.",
    "RAY_START_HOOK": "In the environment of a node's `ray start`: "
    "`ringleader.runtime.preload.on_ray_start` has workers start in a tenth of a second.",
    "PYTHONHASHSEED": "In the environment of a node: the seed by which its workers hash texts and order sets. Left "
    "out: `0`, set by `ringleader up` and by the hook of `ray start`.",
    "XDG_CACHE_HOME": "A folder of caches: a program that is checked beside its job may write into it.",
    "HF_HOME": "The same, of Hugging Face's libraries.",
    "TORCH_HOME": "The same, of torch.",
    "CUBLAS_WORKSPACE_CONFIG": "Memory of cuBLAS for products. Left out: `:4096:8` in jobs that promise bits, with "
    "which it adds in one order.",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "NCCL's own reaction to errors. Left out: `0`, deadlines are "
    "Ringleader's.",
    "TORCH_NCCL_ENABLE_MONITORING": "NCCL's own watchdog. Left out: `0`.",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "Seconds for NCCL's connections. Left out: `15`.",
}
PROGRAMS: dict[str, str] = {
    "RINGLEADER_CHECKPOINT_DIR": "The job's folder for what its program saves, the same in all attempts.",
    "RINGLEADER_PARAMS": "`params` of the job file, as JSON.",
    "RINGLEADER_JOB_ID": "The job's id.",
    "RINGLEADER_ATTEMPT": "The number of the attempt.",
    "RINGLEADER_GENERATION": "The generation in which the program runs.",
}
DEMO: dict[str, str] = {
    "SEED": "Which worker is killed, and when; drawn, and printed, where it is left out.",
    "KEEP": "`1`: everything stays up until Ctrl-C.",
}
BENCH: dict[str, str] = {
    "CHROMIUM": "The browser of `ringleader bench page`. Left out: one on PATH.",
    "RINGLEADER_BENCH_MOSAIC_PYTHON": "The Python of an environment with `mosaicml-streaming` and `pyarrow`: "
    "a peer of `ringleader bench data`, which cannot live beside Ringleader. Left out: no such peer.",
}
OWN: dict[str, str] = {
    "RINGLEADER_PRELOADED": "The socket of a process that is ready to be forked.",
    "RINGLEADER_INDEXES": "The folder of the node's indexes of files, for the process that checks a program.",
    "RINGLEADER_BENCH_SECRET": "The secret of a benchmark's members.",
    "RAY_RAYLET_PID": "The process of a node's raylet.",
    "RAY_JOB_ID": "Ray's name for the job of a worker process.",
    "RAY_ADDRESS": "The cluster, for the driver of a hosted Ray Train job.",
}
"""Set by one process of Ringleader or Ray for another one."""
