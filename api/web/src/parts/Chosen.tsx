/** The framework that `auto` was chosen as, and why; nothing where the job file names one. */
export function Chosen({ spec }: { spec: Record<string, unknown> }) {
  const { framework, framework_why: why } = spec;
  if (typeof framework !== "string" || typeof why !== "string" || why === "") return null;
  return (
    <p className="muted" data-testid="framework">
      framework {framework}, chosen because {why}
    </p>
  );
}
