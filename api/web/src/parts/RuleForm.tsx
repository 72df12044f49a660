/** Setting an alert rule of a project: its name, and what stands in its file. */
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { Refusal } from "../acts/Refusal";
import { setRule } from "../alerts";
import { ApiError } from "../api";

const BEGUN = `when: {state: failed}
channels:
  - {slack: SLACK_URL}
`;

interface Props {
  project: string;
  /** Is told the rule's name once it is set, and what would keep its alerts from arriving as things are now. */
  onSet: (name: string, warnings: readonly string[]) => void;
}

export function RuleForm({ project, onSet }: Props) {
  const [name, setName] = useState("");
  const [text, setText] = useState(BEGUN);
  const { mutate, isPending, error } = useMutation({
    mutationFn: async () => setRule(project, name.trim(), await ruleIn(text)),
    onSuccess: (warnings) => {
      onSet(name.trim(), warnings);
      setName("");
    },
  });
  return (
    <details className="rule-form">
      <summary>Set a rule</summary>
      <form
        className="pad"
        onSubmit={(event) => {
          event.preventDefault();
          mutate();
        }}
      >
        <label>
          Name
          <input value={name} required maxLength={63} onChange={({ target }) => setName(target.value)} />
        </label>
        <label>
          Rule
          <textarea
            className="mono"
            value={text}
            rows={Math.max(5, text.split("\n").length)}
            spellCheck={false}
            onChange={({ target }) => setText(target.value)}
          />
        </label>
        <p className="muted">
          A rule of the same name is replaced. <a href="/guide/how-to/get-alerts.html">What a rule can say</a>
        </p>
        <button type="submit" className="primary" disabled={isPending || name.trim() === ""}>
          Set the rule
        </button>
        <Refusal error={error} />
      </form>
    </details>
  );
}

/** What the text says. The reader of YAML is fetched when it is needed first. */
async function ruleIn(text: string): Promise<Record<string, unknown>> {
  const { read } = await import("../jobfile");
  const { spec, fault } = read(text);
  if (spec !== null) return spec;
  throw new ApiError({ status: 0, detail: `Line ${fault?.line ?? 1} of the rule cannot be read.`, hint: fault?.message ?? "" });
}
