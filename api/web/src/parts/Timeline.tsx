/** What happened to a job, newest first. */
import { useState } from "react";
import type { Feed } from "../feed";
import { clock, full } from "../format";
import { describe } from "../history";
import type { JobEvent } from "../wire";

const FIRST = 60;

export function Timeline({ feed }: { feed: Feed<JobEvent> }) {
  const [all, setAll] = useState(false);
  const newest = [...feed.items].reverse();
  if (newest.length === 0)
    return <p className="muted pad">{feed.loaded ? "Nothing has happened yet." : "Loading events…"}</p>;
  const visible = all ? newest : newest.slice(0, FIRST);
  return (
    <>
      <ol className="timeline" tabIndex={0} aria-label="Events" data-testid="events" data-count={newest.length}>
        {visible.map((event, at) => (
          <Entry key={event.seq} event={event} newAttempt={isFirstOf(visible, at)} />
        ))}
      </ol>
      {visible.length < newest.length && (
        <button type="button" className="small" onClick={() => setAll(true)}>
          Show all {newest.length} events
        </button>
      )}
    </>
  );
}

function Entry({ event, newAttempt }: { event: JobEvent; newAttempt: boolean }) {
  const { title, detail, tone } = describe(event);
  return (
    <li className={`tone-${tone}`} data-type={event.type}>
      <time dateTime={event.at} title={full(event.at)}>
        {clock(event.at)}
      </time>
      <div>
        <b>{title}</b>
        {newAttempt && <span className="tag">attempt {event.attempt}</span>}
        {detail && <p className="muted">{detail}</p>}
      </div>
    </li>
  );
}

/** Whether an attempt after the first begins here. */
function isFirstOf(newestFirst: readonly JobEvent[], at: number): boolean {
  const [mine, older] = [newestFirst[at], newestFirst[at + 1]];
  return mine !== undefined && older !== undefined && mine.attempt > Math.max(1, older.attempt);
}
