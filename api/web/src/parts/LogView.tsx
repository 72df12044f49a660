/** What the workers print: followed, filtered by worker and level. */
import { useEffect, useRef, useState } from "react";
import type { Feed } from "../feed";
import { clock, count, plural } from "../format";
import type { LogLine } from "../wire";

const SHOWN = 1000;

export function LogView({ feed }: { feed: Feed<LogLine> }) {
  const [worker, setWorker] = useState("");
  const [level, setLevel] = useState("");
  const [follow, setFollow] = useState(true);
  const box = useRef<HTMLDivElement | null>(null);
  const matching = feed.items.filter(
    (line) => (!worker || line.worker === worker) && (!level || line.level === level),
  );
  const lines = matching.slice(-SHOWN);
  const last = lines.at(-1)?.seq;
  useEffect(() => {
    const element = box.current;
    if (follow && element) element.scrollTop = element.scrollHeight;
  }, [follow, last]);
  const scrolled = (): void => {
    const element = box.current;
    if (element) setFollow(element.scrollHeight - element.scrollTop - element.clientHeight < 24);
  };
  return (
    <>
      <div className="filters">
        <Pick
          label="Worker"
          value={worker}
          onChange={setWorker}
          options={distinct(feed.items.map((line) => line.worker))}
        />
        <Pick
          label="Level"
          value={level}
          onChange={setLevel}
          options={distinct(feed.items.map((line) => line.level))}
        />
        <label className="check">
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.target.checked)} />
          Follow
        </label>
        <span className="muted push">
          {matching.length > SHOWN
            ? `last ${count(SHOWN)} of ${count(matching.length)} lines`
            : plural(lines.length, "line")}
        </span>
      </div>
      <div
        className="log"
        ref={box}
        onScroll={scrolled}
        tabIndex={0}
        role="log"
        aria-label="Log lines"
        aria-live="off"
        data-testid="logs"
      >
        {lines.length === 0 && <p className="muted pad">{feed.loaded ? "No lines." : "Loading lines…"}</p>}
        {lines.map((line) => (
          <div key={line.seq} className={`log-line level-${line.level}`}>
            <time dateTime={line.at}>{clock(line.at)}</time>
            <span className="log-worker">{line.worker}</span>
            <span className="log-text">
              {line.level === "error" && <span className="log-level">error </span>}
              {line.line}
            </span>
          </div>
        ))}
      </div>
    </>
  );
}

function Pick({
  label,
  value,
  onChange,
  options,
}: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  options: string[];
}) {
  return (
    <label className="pick">
      {label}
      <select value={value} onChange={(event) => onChange(event.target.value)}>
        <option value="">all</option>
        {options.map((option) => (
          <option key={option}>{option}</option>
        ))}
      </select>
    </label>
  );
}

function distinct(values: string[]): string[] {
  return [...new Set(values)].sort();
}
