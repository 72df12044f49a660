/** Who one is, one's projects and tokens, and for admins who changed what. */
import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { me as readMe, rolesText } from "../access";
import { AuditTable } from "../parts/AuditTable";
import { Card } from "../parts/Card";
import { ErrorNotice, Notice, Skeleton } from "../parts/Notice";
import { Projects } from "../parts/Projects";
import { Tokens } from "../parts/Tokens";

export function AccessView() {
  useEffect(() => {
    document.title = "Access · Ringleader";
  }, []);
  const { data: me, failureReason: error } = useQuery({ queryKey: ["me"], queryFn: ({ signal }) => readMe(signal) });
  if (error) return <ErrorNotice error={error} stale={false} />;
  if (me === undefined) return <Skeleton lines={4} />;
  const roles = rolesText(me.roles);
  return (
    <>
      <div className="view-head">
        <h1>Access</h1>
      </div>
      <div className="access">
        <Card title="You">
          <p className="pad" data-testid="me">
            <b>{me.name}</b> <span className="muted">{roles || "no role in any project"}</span>
          </p>
          {roles === "" && (
            <Notice tone="warn" title="You cannot see any jobs yet">
              <p>
                Ask an admin to give you a role: <code>ringleader user grant {me.name} ROLE --project NAME</code>
              </p>
            </Notice>
          )}
        </Card>
        <Projects mayShare={me.roles["*"] === "admin"} />
        <Tokens longestS={me.longest_token_s} />
        {Object.values(me.roles).includes("admin") && <AuditTable />}
      </div>
    </>
  );
}
