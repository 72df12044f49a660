/** Injecting a fault into a job on purpose, to see how it recovers. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type SubmitEvent } from "react";
import { me as readMe } from "../access";
import { injectFault, workers as readWorkers } from "../api";
import { nodeName, nodeNames } from "../nodes";
import { Dialog } from "../parts/Dialog";
import type { Job } from "../wire";
import { FAULTS, mayFault, victims } from "./faults";
import type { Question } from "./question";
import { Refusal } from "./Refusal";

const AT_WORK: ReadonlySet<string> = new Set(["starting", "running", "recovering"]);
const MOST_S = 600;

/** A button for those who may, while the job is at work. */
export function MayFault({ job, onOpen }: { job: Job; onOpen: () => void }) {
  const { data: me } = useQuery({ queryKey: ["me"], queryFn: ({ signal }) => readMe(signal), staleTime: Infinity });
  if (!AT_WORK.has(job.state) || !me || !mayFault(me.roles, job.project)) return null;
  return (
    <button type="button" onClick={onOpen}>
      Inject a fault…
    </button>
  );
}

export function Faults({ job, onClose, onDone }: Question) {
  const { data: members = [] } = useQuery({
    queryKey: ["jobs", job.id, "workers", true],
    queryFn: ({ signal }) => readWorkers(job.id, signal),
  });
  const possible = FAULTS.filter((one) => one.hits === null || victims(one, members).length > 0);
  const [named, setNamed] = useState("kill");
  const [chosen, setChosen] = useState("");
  const [forS, setForS] = useState("15");
  const fault = possible.find(({ name }) => name === named) ?? possible[0];
  const among = fault ? victims(fault, members) : [];
  const victim = among.find(({ id }) => id === chosen) ?? among[0] ?? null;
  const wrong = fault?.lasts === true && !(Number(forS) > 0 && Number(forS) <= MOST_S);
  const { mutate, isPending, error, data: done } = useMutation({
    mutationFn: () => injectFault(job.id, fault?.name ?? "", victim?.id ?? null, Number(forS) || 15),
  });
  if (done) return <Done job={job} effect={done.effect} onDone={onDone} />;
  const send = (event: SubmitEvent): void => {
    event.preventDefault();
    if (fault && !wrong) mutate();
  };
  return (
    <Dialog title={`Inject a fault into ${job.name}`} onClose={onClose}>
      <p>The job is harmed on purpose, and recovers as from a real fault. The event says who did it.</p>
      <form onSubmit={send}>
        <label>
          Fault
          <select value={fault?.name} onChange={(event) => setNamed(event.target.value)}>
            {possible.map(({ name, label }) => (
              <option key={name} value={name}>
                {label}
              </option>
            ))}
          </select>
        </label>
        <p className="muted fault-effect">{fault?.effect}</p>
        <div className="field-row">
          {among.length > 0 && (
            <label>
              Member
              <select value={victim?.id} onChange={(event) => setChosen(event.target.value)}>
                {among.map((one) => (
                  <option key={one.id} value={one.id}>
                    {`${one.id} on ${nodeName(nodeNames([], among), one.node)}`}
                  </option>
                ))}
              </select>
            </label>
          )}
          {fault?.lasts && (
            <label>
              Seconds
              <input type="number" min={0.1} max={MOST_S} step="any" value={forS} onChange={(event) => setForS(event.target.value)} />
            </label>
          )}
        </div>
        <p className="field-error" aria-live="polite">
          {wrong && `It must be more than 0, and ${MOST_S} at most.`}
        </p>
        <Refusal error={error} />
        <div className="dialog-actions">
          <button type="button" onClick={onClose}>
            Leave it alone
          </button>
          <button type="submit" className="danger solid" disabled={isPending || wrong || !fault}>
            {isPending ? "Injecting…" : `${fault?.label.split(" ")[0] ?? ""} ${victim?.id ?? "the supervisor"}`}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Done({ job, effect, onDone }: { job: Job; effect: string; onDone: () => void }) {
  return (
    <Dialog title={`A fault was injected into ${job.name}`} onClose={onDone}>
      <p role="status">{effect}</p>
      <div className="dialog-actions">
        <button type="button" className="primary" onClick={onDone}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
