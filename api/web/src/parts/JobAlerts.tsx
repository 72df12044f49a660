/** The notice on a job's page that alerts were raised for it. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { alerts, alertsTold } from "../alerts";
import { every } from "../cache";
import { Notice } from "./Notice";

const EVERY_MS = 5000;

export function JobAlerts({ job }: { job: string }) {
  const { data } = useQuery({
    queryKey: ["alerts", { job }],
    queryFn: ({ signal }) => alerts({ job }, null, signal),
    refetchInterval: every(EVERY_MS),
  });
  const told = data && alertsTold(data);
  if (!told) return null;
  return (
    <Notice tone={told.failed ? "warn" : "info"} title={told.title} testId="job-alerts">
      <p>
        {data.items[0]?.message}{" "}
        <Link to="/alerts" search={{ job }}>
          See what was raised
        </Link>
      </p>
    </Notice>
  );
}
