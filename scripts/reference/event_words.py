"""What each event of a job says, and each field of its data, in words. A test holds this and the code together."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EventWords:
    """An event in words.

    Attributes:
        says: what has happened.
        fields: its data, by name.
    """

    says: str
    fields: dict[str, str] = field(default_factory=dict)


WHO = "who decided it: a user, or scheduler, supervisor, reconciler"
WORKER = "the member's id"
PID = "its process, where that is known"
RANK = "its rank in the generation"
STEP = "the newest committed step"
MOVED = {
    "who": WHO,
    "from": "the state before",
    "reason": "`code`, `message` and `hint`, where there is a reason",
}
ENDING = MOVED | {"target": "the state that it will end in"}
EVENTS: dict[str, EventWords] = {
    "job.queued": EventWords(
        "It waits for room: submitted, resumed, preempted, or to be tried again.",
        MOVED
        | {
            "framework": "of a job file that says `auto`, what was chosen",
            "framework_why": "the reason for that choice",
        },
    ),
    "job.starting": EventWords("An attempt has places, and its supervisor is being started.", MOVED),
    "job.running": EventWords("At least `workers.min` members can commit.", MOVED),
    "job.recovering": EventWords("Fewer than `workers.min` members can commit.", MOVED),
    "job.stopping": EventWords("Its end is decided, and is being carried out.", ENDING),
    "job.paused": EventWords("Its state is saved, and its places are free.", MOVED),
    "job.succeeded": EventWords("It has ended as it should, and has a result.", MOVED),
    "job.failed": EventWords("It has failed, for the `reason`.", MOVED),
    "job.cancelled": EventWords("Somebody has ended it.", MOVED),
    "workers.resized": EventWords(
        "Somebody has set `workers.min` and `workers.max`.",
        {"who": "the user", "min": "`workers.min` from now on", "max": "`workers.max` from now on"},
    ),
    "workers.granted": EventWords(
        "The scheduler has given it surplus, or taken some back.",
        {
            "who": "scheduler",
            "from": "the workers before",
            "workers": "the workers that it may have from now on",
        },
    ),
    "priority.changed": EventWords(
        "Somebody has set its priority.",
        {"who": "the user", "from": "the priority before", "priority": "the priority from now on"},
    ),
    "labels.changed": EventWords(
        "Somebody has changed its labels.",
        {
            "who": "the user",
            "set": "the labels with new values",
            "removed": "the keys of those it has no more",
        },
    ),
    "fault.injected": EventWords(
        "A fault was injected on purpose.",
        {
            "who": "the user",
            "fault": "its kind",
            "target": "the member, or `supervisor`",
            "effect": "what was done, in words",
        },
    ),
    "supervisor.silent": EventWords(
        "The job's supervisor posts nothing any more.", {"reason": "`code`, `message` and `hint`"}
    ),
    "supervisor.heard": EventWords("The supervisor posts again."),
    "supervisor.returned": EventWords(
        "The supervisor has ended and was started anew; it goes on from its notes.",
        {"start": "the number of its start", "gone": "members whose processes ended meanwhile"},
    ),
    "generation.formed": EventWords(
        "Members have agreed to train together.",
        {
            "members": "their ids, in the order of their ranks",
            "cause": "`start`, `lost`, `join`, `resize` or `drain`; `pause` and `short`: to save what "
            "they hold",
            "step": STEP,
            "world": "the number of workers",
        },
    ),
    "worker.joined": EventWords(
        "A member is in a generation for the first time.",
        {
            "worker": WORKER,
            "pid": PID,
            "node": "the id of its node, where that is known",
            "address": "that of its node, likewise",
            "rank": RANK,
            "step": STEP,
        },
    ),
    "worker.left": EventWords(
        "A member has left between two steps, as was asked of it.",
        {
            "worker": WORKER,
            "pid": PID,
            "cause": "`resize`, `drain` or `slow`",
            "why": "the notice's words, where there was one",
            "step": "steps it had applied",
        },
    ),
    "worker.lost": EventWords(
        "A member is gone without having been asked.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "cause": "how it ended, as far as is known: `died (SIGKILL)`, `frozen`, `stalled`, …",
            "why": "what it said at last, where it said something",
            "step": STEP,
            "phase": "what it was doing",
        },
    ),
    "worker.explained": EventWords(
        "More is known of why a member was lost.",
        {
            "worker": WORKER,
            "pid": PID,
            "cause": "how it ended: the exit code, the signal, or the cluster's words",
        },
    ),
    "worker.stalled": EventWords(
        "A worker beats, and does not advance.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "step": STEP,
            "phase": "what it is doing",
            "since_s": "for how long",
        },
    ),
    "worker.slow": EventWords(
        "A worker is a straggler.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "step": STEP,
            "step_s": "its time for its share of a step",
            "others_s": "that of the others",
            "evicted": "whether it leaves for that (`policy.evict_slow`)",
        },
    ),
    "worker.astray": EventWords(
        "A worker that followed a member before it joined had other state; it is given the whole.",
        {"worker": WORKER, "pid": PID, "what": "what differed", "why": "how that comes about"},
    ),
    "recovered": EventWords(
        "The first step after a loss is committed; of a hosted job, its program runs again. Times in seconds.",
        {
            "detect_s": "from the first sign to knowing who was lost",
            "decide_s": "to the new plan",
            "regroup_s": "until all its members were connected",
            "heal_s": "until all had the newest state",
            "redo_s": "until the next step was committed",
            "total_s": "all of it",
            "steps_lost": "committed steps that have to be trained again; not told of a hosted job",
        },
    ),
    "member.differed": EventWords(
        "A member's state was not that of the others; it was given theirs before that did harm.",
        {"worker": WORKER, "what": "what differed", "why": "how that comes about"},
    ),
    "artifact.saved": EventWords(
        "The program saved a file at a settled step (`session.save`, `log_image`, `log_histogram`, `log_text`).",
        {
            "name": "its name in the program",
            "file": "its name among the artifacts",
            "kind": "`object`, `image`, `histogram` or `text`",
            "step": STEP,
            "size_bytes": "its size",
        },
    ),
    "artifact.failed": EventWords(
        "What the program saved is not kept, and other files for the same reason. Training goes on.",
        {"file": "the first such file", "step": STEP, "why": "the reason", "hint": "what to do"},
    ),
    "checkpoint.saved": EventWords(
        "A checkpoint is whole, and a later attempt can start from it.",
        {
            "step": "its step",
            "uri": "its place",
            "size_bytes": "its size",
            "copied_s": "how long training waited for the copy",
            "removed": "older checkpoints that were removed for it",
            "not_removed": "those that could not be",
        },
    ),
    "checkpoint.failed": EventWords(
        "A checkpoint could not be written. Training goes on.",
        {"why": "the file system's words", "step": "its step, where that is known"},
    ),
    "checkpoint.restored": EventWords(
        "A later attempt begins with a checkpoint.",
        {
            "uri": "its place",
            "step": "its step",
            "attempt": "the attempt that wrote it",
            "calls": "session calls that are finished in it",
        },
    ),
    "checkpoint.none": EventWords(
        "A later attempt begins anew: there is no checkpoint that can be read.", {"step": "0"}
    ),
    "checkpoint.skipped": EventWords(
        "A checkpoint cannot be read, and is passed over.", {"why": "what is wrong"}
    ),
    "weights.loaded": EventWords(
        "The job begins with the weights of `init_from`.",
        {
            "uri": "their place",
            "taken": "how many weights and buffers were taken over",
            "only_here": "names that are not there",
            "only_there": "names that this job does not have",
            "other_shape": "names of another shape",
            "not_taken": "what `init_from` leaves behind, in words",
            "optimizers": "of how many parameters the optimizers' states were taken over",
        },
    ),
    "requirements.installing": EventWords(
        "A node begins to install the job's packages.",
        {"from": "the file, or `requirements`", "packages": "how many are pinned"},
    ),
    "requirements.installed": EventWords(
        "A node has installed them.",
        {"packages": "those that were missing, with versions", "took_s": "how long it took"},
    ),
    "exchange.chosen": EventWords(
        "How gradients, or weights, travel between the members.",
        {
            "algorithm": "as in the job file, or the mode",
            "ways": "by schedule: the number of buckets, and their least and most bytes",
            "costs": "what was measured: latency and bytes a second, inside a node and between nodes",
        },
    ),
    "program.failed": EventWords(
        "The program of a hosted job has failed by itself, and starts anew on all members unless it has too often.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "why": "how it ended, and its last lines",
            "failures": "failures spent so far",
            "most": "`max_failures` of the job",
        },
    ),
    "framework.chosen": EventWords(
        "The first worker has found what `framework: auto` stands for: nothing had chosen when the job was submitted.",
        {"framework": "what was chosen", "framework_why": "the reason for that choice"},
    ),
    "program.differs": EventWords(
        "A variable of the program is not what it would be on another number of workers.",
        {
            "variable": "its name",
            "line": "`file:line` of what set it",
            "cure": "what to do",
            "how": "what is wrong with it, in words",
            "beforehand": "true where it was found before it did harm",
            "raises": "true where it is an exception of workers that join, which no weight differs by",
        },
    ),
    "boundary.unrecorded": EventWords(
        "Lines between two loops make something of more weights than are recorded there.",
        {
            "line": "`file:line`",
            "variable": "the name, where it has one",
            "bound_bytes": "how much is recorded at most",
            "cure": "what to do",
        },
    ),
    "warning": EventWords(
        "A request of the job is not met, or something will fail.",
        {"about": "its subject, in a word", "message": "what happens", "hint": "what to do"},
    ),
}
