/** Saved views: addresses of the job list under names, in this browser alone. */
import { parseQuery, queryText } from "../address";
import { askedOf, type Asked } from "./asked";

const KEY = "ringleader.views";

export type Views = Readonly<Record<string, string>>;

/** What is stored; what is not as this page stores it is left out. */
export function savedViews(storage: Pick<Storage, "getItem">): Views {
  try {
    const stored: unknown = JSON.parse(storage.getItem(KEY) ?? "{}");
    const entries = Object.entries(stored as Record<string, unknown>);
    return Object.fromEntries(entries.filter((entry): entry is [string, string] => typeof entry[1] === "string"));
  } catch {
    return {};
  }
}

export function saveView(storage: Storage, name: string, asked: Asked): Views {
  return store(storage, { ...savedViews(storage), [name]: queryText({ ...asked }) });
}

export function forgetView(storage: Storage, name: string): Views {
  const kept = Object.entries(savedViews(storage)).filter(([one]) => one !== name);
  return store(storage, Object.fromEntries(kept));
}

export function askedBy(view: string): Asked {
  return askedOf(parseQuery(view));
}

function store(storage: Storage, views: Views): Views {
  storage.setItem(KEY, JSON.stringify(views));
  return views;
}
