/** The views that were saved in this browser: to choose, to add, to forget. */
import { useState, type SubmitEvent } from "react";
import type { Asked } from "./asked";
import { NOTHING_ASKED } from "./asked";
import { askedBy, forgetView, savedViews, saveView } from "./views";

export function SavedViews({ asked, onChoose }: { asked: Asked; onChoose: (view: Asked) => void }) {
  const [views, setViews] = useState(() => savedViews(window.localStorage));
  const [name, setName] = useState("");
  const save = (event: SubmitEvent): void => {
    event.preventDefault();
    if (name.trim() === "") return;
    setViews(saveView(window.localStorage, name.trim(), asked));
    setName("");
  };
  return (
    <div className="popup-parts">
      <ul className="views" aria-label="Saved views">
        <li>
          <button type="button" className="quiet" onClick={() => onChoose(NOTHING_ASKED)}>
            All jobs, newest first
          </button>
        </li>
        {Object.entries(views).map(([one, view]) => (
          <li key={one}>
            <button type="button" className="quiet" title={view} onClick={() => onChoose(askedBy(view))}>
              {one}
            </button>
            <button
              type="button"
              className="quiet small"
              aria-label={`Forget ${one}`}
              onClick={() => setViews(forgetView(window.localStorage, one))}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
      <form className="pair" onSubmit={save}>
        <label>
          Save this view as
          <input value={name} maxLength={60} required onChange={(event) => setName(event.target.value)} />
        </label>
        <button type="submit">Save</button>
      </form>
    </div>
  );
}
