/** Where a job's workers above workers.min come from, as the API says. */
import { sentence } from "../format";

export function Surplus({ told }: { told: string }) {
  if (told === "") return null;
  return (
    <p className="muted pad" data-testid="surplus">
      {sentence(told)}.
    </p>
  );
}
