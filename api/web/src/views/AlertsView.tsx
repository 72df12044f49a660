/** Alerts: what was raised and whether it was sent, and the rules of projects. */
import { useNavigate } from "@tanstack/react-router";
import { useEffect } from "react";
import { ALERT_STATES, alertsAsked, type AlertsAsked } from "../alerts";
import { AlertRules } from "../parts/AlertRules";
import { AlertTable } from "../parts/AlertTable";
import { WithJobs } from "../parts/WithJobs";
import "../styles/alerts.css";

export function AlertsView({ asked }: { asked: AlertsAsked }) {
  useEffect(() => {
    document.title = "Alerts · Ringleader";
  }, []);
  const navigate = useNavigate();
  const ask = (change: Record<string, string>): void =>
    void navigate({ to: "/alerts", search: alertsAsked({ ...asked, ...change }), replace: true });
  return (
    <>
      <div className="view-head">
        <h1>Alerts</h1>
        <label>
          State{" "}
          <select value={asked.state ?? ""} onChange={(event) => ask({ state: event.target.value })}>
            <option value="">all</option>
            {ALERT_STATES.map((state) => (
              <option key={state}>{state}</option>
            ))}
          </select>
        </label>
        {asked.job !== undefined && (
          <p>
            Of <WithJobs text={asked.job} />{" "}
            <button type="button" className="quiet" onClick={() => ask({ job: "" })}>
              Show alerts of all jobs
            </button>
          </p>
        )}
        {asked.project !== undefined && (
          <button type="button" className="quiet" onClick={() => ask({ project: "" })}>
            Show alerts of all projects
          </button>
        )}
      </div>
      <div className="alerts-view">
        <AlertTable key={JSON.stringify(asked)} asked={asked} />
        <AlertRules asked={asked.project} />
      </div>
    </>
  );
}
