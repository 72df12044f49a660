"""Environment variables in words, except for the control plane's settings, which the docstring of
`ringleader_api.settings.Settings` describes. A test keeps this and the code together."""

USERS: dict[str, str] = {
    "RINGLEADER_URL": "The address of the control plane, for the SDK and the command line. Default: the "
    "address in the profile that `ringleader up` wrote.",
    "RINGLEADER_TOKEN": "The API token for it.",
    "RINGLEADER_HOME": "The folder of a control plane: token, database, packages, checkpoints, artifacts, "
    "and the profile. Default: `~/.ringleader`.",
    "LANG": "The locale. With `C` and `POSIX` the command line draws in plain ASCII.",
    "LC_ALL": "The same; it takes precedence over the other two.",
    "LC_CTYPE": "The same; it takes precedence over `LANG`.",
}
NODES: dict[str, str] = {
    "RINGLEADER_SCRATCH": "In the environment of a node's `ray start`: a folder on the node's own disk "
    "with room for copies of data sets. Default: the folder for temporary files.",
    "TORCHINDUCTOR_CACHE_DIR": "The folder for the code of compiled models. As this code is executed, the folder must "
    "be private to the account. Default: one below `RINGLEADER_SCRATCH`.",
    "CXX": "The C++ compiler for `session.model(net, compile=True)`. Default: `g++`.",
    "RAY_AUTH_TOKEN": "The token of the Ray cluster.",
    "RAY_AUTH_TOKEN_PATH": "The file with the token of the Ray cluster.",
    "RAY_AUTH_MODE": "Whether Ray requires a token. Default: `token` if there is one.",
    "RAY_USAGE_STATS_ENABLED": "Whether Ray reports usage statistics. Default: `0`.",
    "JE_ARROW_MALLOC_CONF": "Options of Arrow's memory allocator. Default: no background threads, so that "
    "workers can be forked.",
    "RAY_START_HOOK": "In the environment of a node's `ray start`: "
    "with `ringleader.runtime.preload.on_ray_start` workers start in a tenth of a second.",
    "PYTHONHASHSEED": "In the environment of a node: the seed of string hashes, on which the order of sets depends. "
    "Default: `0`, set by `ringleader up` and by the hook of `ray start`.",
    "XDG_CACHE_HOME": "A folder for caches. The program check may write into it.",
    "HF_HOME": "The same for Hugging Face's libraries.",
    "TORCH_HOME": "The same for torch.",
    "CUBLAS_WORKSPACE_CONFIG": "The workspace of cuBLAS. Default: `:4096:8` in jobs that promise the same bits, which "
    "makes the order of additions fixed.",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "How torch handles errors of NCCL. Default: `0`, as Ringleader has its own "
    "deadlines.",
    "TORCH_NCCL_ENABLE_MONITORING": "Whether torch monitors NCCL with a watchdog. Default: `0`.",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "Seconds that NCCL may take to connect. Default: `15`.",
}
PROGRAMS: dict[str, str] = {
    "RINGLEADER_CHECKPOINT_DIR": "The folder in which the program saves its state, the same in all attempts.",
    "RINGLEADER_PARAMS": "`params` of the job file, as JSON.",
    "RINGLEADER_JOB_ID": "The job's id.",
    "RINGLEADER_ATTEMPT": "The number of the attempt.",
    "RINGLEADER_GENERATION": "The generation in which the program runs.",
}
DEMO: dict[str, str] = {
    "SEED": "The seed that decides which worker is killed, and when. Default: a random one, which is printed.",
    "KEEP": "With `1` everything keeps running until Ctrl-C.",
}
BENCH: dict[str, str] = {
    "CHROMIUM": "The browser for `ringleader bench page`. Default: one on PATH.",
    "RINGLEADER_BENCH_MOSAIC_PYTHON": "The Python interpreter of an environment with `mosaicml-streaming` and "
    "`pyarrow`, which `ringleader bench data` compares with; it cannot be installed beside Ringleader. Default: it is "
    "left out of the comparison.",
}
OWN: dict[str, str] = {
    "RINGLEADER_PRELOADED": "The socket of the process from which workers are forked.",
    "RINGLEADER_INDEXES": "The folder of the node's file indexes, for the program check.",
    "RINGLEADER_BENCH_SECRET": "The secret that the members of a benchmark share.",
    "RAY_RAYLET_PID": "The process ID of the node's raylet.",
    "RAY_JOB_ID": "Ray's ID for the job of a worker process.",
    "RAY_ADDRESS": "The Ray cluster, for the driver of a hosted Ray Train job.",
}
"""Set by one process of Ringleader or Ray for another one."""
