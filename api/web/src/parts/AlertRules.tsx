/** The alert rules of a project, each with a test that goes to its channels. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { alertRules, channelText, dropRule, testRule, whenText, type AlertRule } from "../alerts";
import { every } from "../cache";
import { projects as readProjects, type Project } from "../projects";
import { Card } from "./Card";
import { Empty, ErrorNotice, Notice, Skeleton } from "./Notice";
import { RuleForm } from "./RuleForm";

const EVERY_MS = 5000;
const KEEPERS = new Set(["operator", "admin"]);

export function AlertRules({ asked }: { asked: string | undefined }) {
  const { data: projects, failureReason: error } = useQuery({
    queryKey: ["projects"],
    queryFn: ({ signal }) => readProjects(signal),
  });
  const [chosen, setChosen] = useState(asked);
  const project = projects?.find((one) => one.name === chosen) ?? projects?.[0];
  const choice = projects && project && projects.length > 1 && (
    <label>
      Project{" "}
      <select value={project.name} onChange={(event) => setChosen(event.target.value)}>
        {projects.map((one) => (
          <option key={one.name}>{one.name}</option>
        ))}
      </select>
    </label>
  );
  return (
    <Card title={project ? `Rules of ${project.name}` : "Rules"} aside={choice}>
      {error && <ErrorNotice error={error} stale={projects !== undefined} />}
      {projects === undefined && !error && <Skeleton lines={3} />}
      {projects?.length === 0 && <Empty title="You have no project" />}
      {project && <Rules key={project.name} project={project} />}
    </Card>
  );
}

function Rules({ project }: { project: Project }) {
  const { data, failureReason: error } = useQuery({
    queryKey: ["alert-rules", project.name],
    queryFn: ({ signal }) => alertRules(project.name, signal),
    refetchInterval: every(EVERY_MS),
  });
  const cache = useQueryClient();
  const [said, setSaid] = useState("");
  const after = (words: string) => (): void => {
    setSaid(words);
    void cache.invalidateQueries({ queryKey: ["alerts"] });
    void cache.invalidateQueries({ queryKey: ["alert-rules"] });
  };
  const tested = useMutation({
    mutationFn: testRule,
    onSuccess: (_, rule: AlertRule) => after(`A test of ${rule.name} is on its way.`)(),
  });
  const dropped = useMutation({
    mutationFn: dropRule,
    onSuccess: (_, rule: AlertRule) => after(`${rule.name} was deleted.`)(),
  });
  const failed = tested.error ?? dropped.error;
  if (data === undefined) return error ? <ErrorNotice error={error} stale={false} /> : <Skeleton lines={3} />;
  return (
    <>
      {failed && <ErrorNotice error={failed} stale={false} />}
      {!failed && said !== "" && <Notice tone="info" title={said} testId="alert-said" />}
      {data.length === 0 ? (
        <Empty title="No rules">
          <p className="muted">
            <code>ringleader alerts set NAME rule.yaml --project {project.name}</code>
          </p>
        </Empty>
      ) : (
        <div className="scroll">
          <table data-testid="alert-rules" className="stacked">
            <thead>
              <tr>
                <th>Name</th>
                <th>When</th>
                <th>Channels</th>
                <th>Set by</th>
                {KEEPERS.has(project.role) && <th aria-label="Actions" />}
              </tr>
            </thead>
            <tbody>
              {data.map((rule) => (
                <tr key={rule.name}>
                  <td data-said="Name">
                    <b>{rule.name}</b>
                  </td>
                  <td data-said="When">{whenText(rule.when)}</td>
                  <td className="mono" data-said="Channels">
                    {rule.channels.map((channel, place) => (
                      <div key={place}>{channelText(channel)}</div>
                    ))}
                  </td>
                  <td data-said="Set by">{rule.set_by}</td>
                  {KEEPERS.has(project.role) && (
                    <td className="alert-acts">
                      <button type="button" disabled={tested.isPending} onClick={() => tested.mutate(rule)}>
                        Send a test
                      </button>
                      <button
                        type="button"
                        className="quiet"
                        disabled={dropped.isPending}
                        onClick={() => window.confirm(`Delete the rule ${rule.name}?`) && dropped.mutate(rule)}
                      >
                        Delete
                      </button>
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {KEEPERS.has(project.role) && (
        <RuleForm project={project.name} onSet={(name, warnings) => after([`${name} is set.`, ...warnings].join(" "))()} />
      )}
    </>
  );
}
