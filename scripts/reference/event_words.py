"""The events of a job and the fields of their data, in words. A test keeps this and the code together."""

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


WHO = "who decided it: a user, or `scheduler`, `supervisor` or `reconciler`"
WORKER = "the member's id"
PID = "its process ID, if known"
RANK = "its rank in the generation"
STEP = "the newest committed step"
MOVED = {
    "who": WHO,
    "from": "the previous state",
    "reason": "`code`, `message` and `hint`, if there is a reason",
}
ENDING = MOVED | {"target": "the state in which it will end"}
EVENTS: dict[str, EventWords] = {
    "job.queued": EventWords(
        "The job waits in the queue: it was submitted, resumed or preempted, or it will be retried.",
        MOVED
        | {
            "framework": "the framework chosen, if the job file says `auto`",
            "framework_why": "the reason for that choice",
        },
    ),
    "job.starting": EventWords(
        "Resources are reserved for an attempt, and its supervisor is starting.", MOVED
    ),
    "job.running": EventWords("At least `workers.min` members can commit.", MOVED),
    "job.recovering": EventWords("Fewer than `workers.min` members can commit.", MOVED),
    "job.stopping": EventWords("The job is being shut down.", ENDING),
    "job.paused": EventWords("The job's state is saved, and its resources are released.", MOVED),
    "job.succeeded": EventWords("The job finished and has a result.", MOVED),
    "job.failed": EventWords("The job failed; `reason` says why.", MOVED),
    "job.cancelled": EventWords("The job was cancelled.", MOVED),
    "workers.resized": EventWords(
        "A user changed `workers.min` and `workers.max`.",
        {"who": "the user", "min": "the new `workers.min`", "max": "the new `workers.max`"},
    ),
    "workers.granted": EventWords(
        "The scheduler changed the number of workers above `workers.min` that the job may have.",
        {
            "who": "scheduler",
            "from": "the previous number of workers",
            "workers": "the number of workers that the job may have now",
        },
    ),
    "priority.changed": EventWords(
        "A user changed the job's priority.",
        {"who": "the user", "from": "the previous priority", "priority": "the new priority"},
    ),
    "labels.changed": EventWords(
        "A user changed the job's labels.",
        {
            "who": "the user",
            "set": "labels that were added or changed",
            "removed": "keys of labels that were removed",
        },
    ),
    "fault.injected": EventWords(
        "A user injected a fault.",
        {
            "who": "the user",
            "fault": "its kind",
            "target": "the member, or `supervisor`",
            "effect": "what was done, in words",
        },
    ),
    "supervisor.silent": EventWords(
        "The control plane has stopped receiving records from the job's supervisor.",
        {"reason": "`code`, `message` and `hint`"},
    ),
    "supervisor.heard": EventWords("The control plane receives the supervisor's records again."),
    "supervisor.returned": EventWords(
        "The supervisor died and was restarted; it continues from its stored state.",
        {"start": "the number of this start", "gone": "members whose processes ended in the meantime"},
    ),
    "generation.formed": EventWords(
        "A new generation of members trains together.",
        {
            "members": "the members' ids, in rank order",
            "cause": "`start`, `lost`, `join`, `resize` or `drain`; `pause` and `short` form one "
            "only to save its state",
            "step": STEP,
            "world": "the number of workers",
        },
    ),
    "worker.joined": EventWords(
        "A member takes part in a generation for the first time.",
        {
            "worker": WORKER,
            "pid": PID,
            "node": "the id of its node, if known",
            "address": "the address of its node, if known",
            "rank": RANK,
            "step": STEP,
        },
    ),
    "worker.left": EventWords(
        "A member left between two steps, as planned.",
        {
            "worker": WORKER,
            "pid": PID,
            "cause": "`resize`, `drain` or `slow`",
            "why": "the text of the shutdown notice, if there was one",
            "step": "the number of steps it had applied",
        },
    ),
    "worker.lost": EventWords(
        "A member was lost unexpectedly.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "cause": "how it ended, if known: `died (SIGKILL)`, `frozen`, `stalled`, …",
            "why": "its last output, if any",
            "step": STEP,
            "phase": "what it was doing at the time",
        },
    ),
    "worker.explained": EventWords(
        "More details of why a member was lost.",
        {
            "worker": WORKER,
            "pid": PID,
            "cause": "how it ended: the exit code, the signal, or the cluster's message",
        },
    ),
    "worker.stalled": EventWords(
        "A worker sends heartbeats but makes no progress.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "step": STEP,
            "phase": "what it is doing",
            "since_s": "seconds without progress",
        },
    ),
    "worker.slow": EventWords(
        "A worker is a straggler.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "step": STEP,
            "step_s": "seconds it takes for its share of a step",
            "others_s": "the same for the other workers",
            "evicted": "whether it is evicted for this (`policy.evict_slow`)",
        },
    ),
    "worker.astray": EventWords(
        "A worker that followed a member before it joined had a different state; it receives the whole state.",
        {"worker": WORKER, "pid": PID, "what": "what differed", "why": "the likely cause"},
    ),
    "recovered": EventWords(
        "The first step after a loss was committed, or the program of a hosted job runs again. Times are in seconds.",
        {
            "detect_s": "from the first sign of the loss until it is known who was lost",
            "decide_s": "until the new plan is made",
            "regroup_s": "until all its members are connected",
            "heal_s": "until all of them have the newest state",
            "redo_s": "until the next step is committed",
            "total_s": "the sum of these",
            "steps_lost": "committed steps that must be trained again; absent for hosted jobs",
        },
    ),
    "member.differed": EventWords(
        "A member's state differed from that of the others; it received theirs before this did any harm.",
        {"worker": WORKER, "what": "what differed", "why": "the likely cause"},
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
        "A file that the program saved could not be kept; later files that fail for the same reason are not reported. "
        "Training continues.",
        {"file": "the first file that failed", "step": STEP, "why": "the reason", "hint": "what to do"},
    ),
    "checkpoint.saved": EventWords(
        "A checkpoint is complete, and a later attempt can start from it.",
        {
            "step": "its step",
            "uri": "where it is",
            "size_bytes": "its size",
            "copied_s": "seconds that training waited for the copy",
            "removed": "older checkpoints that were removed",
            "not_removed": "older checkpoints that could not be removed",
        },
    ),
    "checkpoint.failed": EventWords(
        "A checkpoint could not be written. Training continues.",
        {"why": "the file system's error message", "step": "its step, if known"},
    ),
    "checkpoint.restored": EventWords(
        "An attempt starts from a checkpoint.",
        {
            "uri": "where it is",
            "step": "its step",
            "attempt": "the attempt that wrote it",
            "calls": "the number of session calls finished in it",
        },
    ),
    "checkpoint.none": EventWords(
        "An attempt starts from step 0, as no checkpoint can be read.", {"step": "0"}
    ),
    "checkpoint.skipped": EventWords(
        "A checkpoint cannot be read and was skipped.", {"why": "what is wrong with it"}
    ),
    "weights.loaded": EventWords(
        "The job starts with the weights of `init_from`.",
        {
            "uri": "where they are",
            "taken": "the number of weights and buffers loaded",
            "only_here": "names that only this job has",
            "only_there": "names that only the other one has",
            "other_shape": "names whose shapes differ",
            "not_taken": "what `init_from` does not load, in words",
            "optimizers": "the number of parameters whose optimizer state was loaded",
        },
    ),
    "requirements.installing": EventWords(
        "A node starts to install the job's packages.",
        {"from": "the file, or `requirements`", "packages": "the number of pinned packages"},
    ),
    "requirements.installed": EventWords(
        "A node has installed the job's packages.",
        {
            "packages": "the packages that were missing, with versions",
            "took_s": "how long it took, in seconds",
        },
    ),
    "exchange.chosen": EventWords(
        "How gradients, or weights, travel between the members.",
        {
            "algorithm": "the algorithm of the job file, or the mode",
            "ways": "for each schedule: the number of its buckets, and the bytes of the smallest and the largest",
            "costs": "measured latency and bytes per second, inside a node and between nodes",
        },
    ),
    "program.failed": EventWords(
        "The program of a hosted job failed. It is restarted on all members, unless it has failed too often.",
        {
            "worker": WORKER,
            "pid": PID,
            "rank": RANK,
            "why": "how it ended, and its last lines of output",
            "failures": "failures spent so far",
            "most": "`max_failures` of the job",
        },
    ),
    "framework.chosen": EventWords(
        "The first worker has chosen the framework for `framework: auto`, as it was not chosen at submission.",
        {"framework": "what was chosen", "framework_why": "the reason for that choice"},
    ),
    "program.differs": EventWords(
        "A variable of the program would have another value with another number of workers.",
        {
            "variable": "its name",
            "line": "`file:line` where it was set",
            "cure": "what to do",
            "how": "what is wrong, in words",
            "beforehand": "true if it was found before it did any harm",
            "raises": "true if it is an exception of workers that join, which changes no weights",
        },
    ),
    "boundary.unrecorded": EventWords(
        "Lines between two loops compute something from more weights than are recorded there.",
        {
            "line": "`file:line`",
            "variable": "its name, if it has one",
            "bound_bytes": "the most that is recorded, in bytes",
            "cure": "what to do",
        },
    ),
    "warning": EventWords(
        "Something that the job asks for has no effect, or is likely to fail.",
        {"about": "the subject, in one word", "message": "what happens", "hint": "what to do"},
    ),
}
