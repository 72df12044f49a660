/** A link that saves a report: one HTML file, made by the API, to hand to anyone. */

export function ReportLink({ href }: { href: string }) {
  return (
    <a className="button" href={href} download title="One HTML file with curves, tables and job files">
      Report
    </a>
  );
}
