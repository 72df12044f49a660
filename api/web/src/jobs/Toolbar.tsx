/** Above the job list: its search, its filters, its columns and the views that were saved. */
import { useId, useRef, useState, type SubmitEvent } from "react";
import { Popup } from "../parts/Popup";
import { StateBadge } from "../parts/State";
import { STATES } from "../wire";
import { columnsAsked, columnsSaid, isPair, narrowings, NOTHING_ASKED, type Asked } from "./asked";
import { ColumnChoice } from "./ColumnChoice";
import { useFacets } from "./reading";
import { SavedViews } from "./SavedViews";

const PAUSE_MS = 250;

export interface Asking {
  asked: Asked;
  /** Changes the address; `typed`: as one of many changes that make one step back. */
  ask: (change: Partial<Asked>, typed?: boolean) => void;
}

export function Toolbar({ asked, ask }: Asking) {
  const narrowed = narrowings(asked);
  return (
    <>
      <div className="toolbar">
        <Search asked={asked} ask={ask} />
        <Popup title="Filters" count={narrowed.length}>
          <Filters asked={asked} ask={ask} />
        </Popup>
        <Popup title="Columns" className="popup-columns">
          <ColumnChoice chosen={columnsAsked(asked)} onChange={(ids) => ask({ columns: columnsSaid(ids) })} />
        </Popup>
        <Popup title="Group" count={asked.group === undefined ? 0 : 1}>
          <GroupChoice asked={asked} ask={ask} />
        </Popup>
        <Popup title="Views">
          <SavedViews asked={asked} onChoose={(view) => ask({ ...NOTHING_ASKED, ...view })} />
        </Popup>
      </div>
      <div className="chips filter" role="group" aria-label="Filter by state">
        {[undefined, ...STATES].map((state) => (
          <button
            key={state ?? ""}
            type="button"
            className="chip"
            aria-pressed={state === asked.state}
            onClick={() => ask({ state })}
          >
            {state ? <StateBadge state={state} /> : "All"}
          </button>
        ))}
      </div>
      {narrowed.length > 0 && (
        <div className="chips filter" role="group" aria-label="Filters in use">
          {narrowed.map(({ words, without }) => (
            <button key={words} type="button" className="chip" aria-label={`Remove ${words}`} onClick={() => ask(without)}>
              {words} <span aria-hidden="true">×</span>
            </button>
          ))}
        </div>
      )}
    </>
  );
}

/** Asks when typing pauses. What is typed is shown while one types; else what the address says. */
function Search({ asked, ask }: Asking) {
  const [typed, setTyped] = useState<string | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const send = (text: string): void => {
    clearTimeout(timer.current);
    const search = text.trim() || undefined;
    if (search !== asked.search) ask({ search }, true);
  };
  return (
    <input
      type="search"
      className="search"
      aria-label="Search jobs"
      placeholder="Search name, ID, label"
      value={typed ?? asked.search ?? ""}
      onChange={({ target }) => {
        setTyped(target.value);
        clearTimeout(timer.current);
        timer.current = setTimeout(() => send(target.value), PAUSE_MS);
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && typed !== null) send(typed);
      }}
      onBlur={() => {
        if (typed !== null) send(typed);
        setTyped(null);
      }}
    />
  );
}

function Filters({ asked, ask }: Asking) {
  const facets = useFacets(true);
  const labels = Object.entries(facets?.labels ?? {}).flatMap(([key, values]) => values.map((value) => `${key}=${value}`));
  return (
    <div className="popup-parts">
      <Choice
        title="Project"
        value={asked.project}
        known={facets?.projects ?? []}
        onChange={(project) => ask({ project })}
      />
      <Choice title="Owner" value={asked.owner} known={facets?.owners ?? []} onChange={(owner) => ask({ owner })} />
      <Pair
        title="Label"
        known={labels}
        example="team=vision"
        onAdd={(one) => ask({ label: [...new Set([...(asked.label ?? []), one])] })}
      />
      <Pair
        title="Parameter"
        known={(facets?.params ?? []).map((key) => `${key}=`)}
        example="lr=0.1"
        onAdd={(one) => ask({ param: [...new Set([...(asked.param ?? []), one])] })}
      />
    </div>
  );
}

/** What the jobs are grouped by. */
function GroupChoice({ asked, ask }: Asking) {
  const facets = useFacets(true);
  const known = [
    ...Object.keys(facets?.labels ?? {}).map((key) => `label:${key}`),
    ...(facets?.params ?? []).map((key) => `param:${key}`),
  ];
  return (
    <div className="popup-parts">
      <Choice
        title="Group by"
        value={asked.group}
        none="nothing"
        known={known}
        onChange={(group) => ask({ group, open: undefined })}
      />
    </div>
  );
}

interface ChoiceProps {
  title: string;
  value: string | undefined;
  known: readonly string[];
  none?: string;
  onChange: (value: string | undefined) => void;
}

function Choice({ title, value, known, none = "all", onChange }: ChoiceProps) {
  const options = value && !known.includes(value) ? [value, ...known] : known;
  return (
    <label>
      {title}
      <select value={value ?? ""} onChange={(event) => onChange(event.target.value || undefined)}>
        <option value="">{none}</option>
        {options.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </label>
  );
}

interface PairProps {
  title: string;
  known: readonly string[];
  example: string;
  onAdd: (pair: string) => void;
}

/** A field for key=value, with those that are known to choose from. */
function Pair({ title, known, example, onAdd }: PairProps) {
  const [text, setText] = useState("");
  const list = useId();
  const add = (event: SubmitEvent): void => {
    event.preventDefault();
    if (!isPair(text.trim())) return;
    onAdd(text.trim());
    setText("");
  };
  return (
    <form className="pair" onSubmit={add}>
      <label>
        {title}
        <input
          value={text}
          list={list}
          placeholder={example}
          pattern="[^=]+=.*|!.+"
          title="key=value, or !key for jobs without it"
          required
          onChange={(event) => setText(event.target.value)}
        />
      </label>
      <datalist id={list}>
        {known.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
      <button type="submit">Add</button>
    </form>
  );
}
