/** What the workers print: followed, searched, filtered by worker, level and attempt, and downloaded. */
import { useEffect, useMemo, useRef, useState } from "react";
import { ApiError, logLines } from "../api";
import type { Feed } from "../feed";
import { clock, count, plural } from "../format";
import { saveText } from "../plot/save";
import type { JobEvent, LogLine } from "../wire";
import { ALL, asText, beginningsOf, pieces, wantedOf, windowOf, type Beginnings, type Wanted } from "./lines";

const SHOWN = 1000;
/** Lines before the first error that are read with it. */
const BEFORE = 250;

interface Props {
  job: string;
  feed: Feed<LogLine>;
  events: readonly JobEvent[];
  /** So many of the newest lines are kept. */
  cap: number;
}

export function LogView({ job, feed, events, cap }: Props) {
  const [wanted, setWanted] = useState(ALL);
  const [follow, setFollow] = useState(true);
  const [around, setAround] = useState<number | null>(null);
  const [earlier, setEarlier] = useState<readonly LogLine[] | null>(null);
  const [said, setSaid] = useState("");
  const box = useRef<HTMLDivElement | null>(null);
  const beginnings = useMemo(() => beginningsOf(events), [events]);
  const known = earlier ?? feed.items;
  const matching = useMemo(() => wantedOf(known, wanted, beginnings), [known, wanted, beginnings]);
  const lines = windowOf(matching, follow ? null : around, SHOWN);
  const last = lines.at(-1)?.seq;
  useEffect(() => {
    const element = box.current;
    if (follow && element) element.scrollTop = element.scrollHeight;
  }, [follow, last]);
  useEffect(() => {
    if (around !== null) box.current?.querySelector(`[data-seq="${around}"]`)?.scrollIntoView({ block: "center" });
  }, [around, earlier]);
  const scrolled = (): void => {
    const element = box.current;
    if (element && earlier === null) setFollow(element.scrollHeight - element.scrollTop - element.clientHeight < 24);
  };
  const newest = (): void => {
    setEarlier(null);
    setAround(null);
    setFollow(true);
    setSaid("");
  };
  const toFirstError = async (): Promise<void> => {
    const found = await firstError(job, feed.items, { ...wanted, level: "error" }, beginnings, cap);
    setSaid(found === null ? "No line is an error." : "");
    if (found === null) return;
    setFollow(false);
    setEarlier(found.lines);
    setAround(found.seq);
    if (wanted.level === "info") setWanted({ ...wanted, level: "" });
  };
  return (
    <>
      <Filters wanted={wanted} lines={feed.items} beginnings={beginnings} onChange={setWanted} />
      <div className="filters">
        <label className="check">
          <input type="checkbox" checked={follow} onChange={(event) => (event.target.checked ? newest() : setFollow(false))} />
          Follow
        </label>
        <Act label="First error" act={toFirstError} onFault={setSaid} />
        <Act label="Download" act={() => download(job, wanted, beginnings)} onFault={setSaid} />
        {earlier && (
          <button type="button" className="small" onClick={newest}>
            Back to the newest lines
          </button>
        )}
        <span className="muted push" role="status">
          {said || shownWords(lines.length, matching.length, feed.items.length >= cap && earlier === null ? cap : null)}
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
          <div key={line.seq} data-seq={line.seq} className={`log-line level-${line.level} ${line.seq === around ? "log-here" : ""}`}>
            <time dateTime={line.at}>{clock(line.at)}</time>
            <span className="log-worker">{line.worker}</span>
            <span className="log-text">
              {line.level === "error" && <span className="log-level">error </span>}
              {pieces(line.line, wanted.text).map((piece, at) => (at % 2 === 1 ? <mark key={at}>{piece}</mark> : piece))}
            </span>
          </div>
        ))}
      </div>
    </>
  );
}

interface FiltersProps {
  wanted: Wanted;
  lines: readonly LogLine[];
  beginnings: Beginnings;
  onChange: (wanted: Wanted) => void;
}

function Filters({ wanted, lines, beginnings, onChange }: FiltersProps) {
  const [workers, levels] = useMemo(() => [distinct(lines.map((line) => line.worker)), distinct(lines.map((line) => line.level))], [lines]);
  const to = (part: Partial<Wanted>): void => onChange({ ...wanted, ...part });
  return (
    <div className="filters log-filters">
      <label className="pick">
        Search
        <input type="search" value={wanted.text} maxLength={200} onChange={(event) => to({ text: event.target.value })} />
      </label>
      <Pick label="Worker" value={wanted.worker} onChange={(worker) => to({ worker })} options={workers} />
      <Pick label="Level" value={wanted.level} onChange={(level) => to({ level })} options={levels} />
      {beginnings.length > 1 && (
        <Pick
          label="Attempt"
          value={wanted.attempt}
          onChange={(attempt) => to({ attempt })}
          options={beginnings.map((one) => String(one.attempt))}
        />
      )}
    </div>
  );
}

/** A button whose work takes a while and may fail. */
function Act({ label, act, onFault }: { label: string; act: () => Promise<void>; onFault: (words: string) => void }) {
  const [busy, setBusy] = useState(false);
  const run = (): void => {
    setBusy(true);
    act()
      .catch((error: unknown) => onFault(error instanceof ApiError ? error.message : String(error)))
      .finally(() => setBusy(false));
  };
  return (
    <button type="button" className="small" disabled={busy} onClick={run}>
      {label}
    </button>
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

/** The first error line that is wanted, and the lines around it where they are not among the known ones. */
async function firstError(
  job: string,
  known: readonly LogLine[],
  wanted: Wanted,
  beginnings: Beginnings,
  cap: number,
): Promise<{ seq: number; lines: readonly LogLine[] | null } | null> {
  if (known.length >= cap) {
    for await (const items of pages(job, wanted)) {
      const [first] = wantedOf(items, wanted, beginnings);
      if (!first) continue;
      if (first.seq >= (known[0]?.seq ?? 0)) return { seq: first.seq, lines: null };
      const { items: lines } = await logLines(job, { after: Math.max(0, first.seq - BEFORE), limit: SHOWN });
      return { seq: first.seq, lines };
    }
    return null;
  }
  const first = wantedOf(known, wanted, beginnings)[0];
  return first ? { seq: first.seq, lines: null } : null;
}

/** All stored lines that are wanted, as a text file. */
async function download(job: string, wanted: Wanted, beginnings: Beginnings): Promise<void> {
  let text = "";
  for await (const items of pages(job, wanted)) text += asText(wantedOf(items, wanted, beginnings));
  saveText(`${job}.log`, text);
}

async function* pages(job: string, { worker, level, text }: Wanted): AsyncGenerator<LogLine[]> {
  let after: number | null = 0;
  while (after !== null) {
    const page: { items: LogLine[]; next: number | null } = await logLines(job, { after, limit: SHOWN, worker, level, text });
    yield page.items;
    after = page.next;
  }
}

function shownWords(shown: number, matching: number, cap: number | null): string {
  const among = cap === null ? "" : ` among the newest ${count(cap)}`;
  return matching > shown ? `${count(shown)} of ${count(matching)} lines${among}` : `${plural(shown, "line")}${among}`;
}

function distinct(values: string[]): string[] {
  return [...new Set(values)].sort();
}
