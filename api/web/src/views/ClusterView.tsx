/** The cluster: who takes what of which node, who waits, what was asked for, and what was held over the last days. */
import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { every } from "../cache";
import { Growth } from "../cluster/Growth";
import { LastDays } from "../cluster/LastDays";
import { Nodes } from "../cluster/Nodes";
import { Queue } from "../cluster/Queue";
import { Quotas } from "../cluster/Quotas";
import { occupancy as readOccupancy, type Occupancy } from "../cluster/wire";
import { plural } from "../format";
import { Card } from "../parts/Card";
import { CopyLink } from "../parts/CopyLink";
import { ErrorNotice, Notice, Skeleton } from "../parts/Notice";
import "../styles/cluster.css";

const EVERY_MS = 2000;

export function ClusterView() {
  useEffect(() => {
    document.title = "Cluster · Ringleader";
  }, []);
  const { data, failureReason, dataUpdatedAt } = useQuery({
    queryKey: ["cluster", "occupancy"],
    queryFn: ({ signal }) => readOccupancy(signal),
    refetchInterval: every(EVERY_MS),
  });
  return (
    <div className="cluster">
      <div className="view-head">
        <h1>Cluster</h1>
        <CopyLink />
      </div>
      {failureReason && <ErrorNotice error={failureReason} stale={data !== undefined} />}
      {data === undefined && !failureReason && <Skeleton lines={8} />}
      {data && <Shown data={data} now={dataUpdatedAt} />}
      <LastDays />
    </div>
  );
}

function Shown({ data, now }: { data: Occupancy; now: number }) {
  return (
    <>
      {!data.reachable && <Notice tone="warn" title={`The cluster is out of reach: ${data.trouble}`} />}
      <Card title="Nodes" aside={<span className="muted">{plural(data.nodes.length, "node")}</span>}>
        <Nodes nodes={data.nodes} />
      </Card>
      <Card title="Queue" aside={<span className="muted">{plural(data.waiting, "job")}</span>}>
        <Queue queue={data.queue} waiting={data.waiting} now={now} />
      </Card>
      <div className="cluster-pair">
        <Card title="Projects">
          <Quotas projects={data.projects} />
        </Card>
        <Card title="Autoscaler">
          <Growth growing={data.growing} />
        </Card>
      </div>
    </>
  );
}
