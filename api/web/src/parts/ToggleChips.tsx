/** Names that are each on or off. */
interface Props {
  /** What they are, for who does not see them. */
  label: string;
  names: readonly string[];
  on: readonly string[];
  onFlip: (name: string) => void;
  /** No more may be on. */
  full?: boolean;
  words?: (name: string) => string;
}

export function ToggleChips({ label, names, on, onFlip, full = false, words = (name) => name }: Props) {
  return (
    <div className="chips" role="group" aria-label={label}>
      {names.map((name) => (
        <button
          key={name}
          type="button"
          className="chip"
          aria-pressed={on.includes(name)}
          disabled={full && !on.includes(name)}
          onClick={() => onFlip(name)}
        >
          {words(name)}
        </button>
      ))}
    </div>
  );
}
