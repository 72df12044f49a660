/** A button that opens a small panel beside it: closed by Escape, by a click elsewhere, and left by Tab. */
import { Popover } from "radix-ui";
import type { ReactNode } from "react";

interface Props {
  title: string;
  /** What it belongs to, for who does not see what it stands beside. */
  of?: string;
  /** How many of what the panel holds are in use; 0 is not shown. */
  count?: number;
  children: ReactNode;
  className?: string;
  onOpen?: (open: boolean) => void;
}

export function Popup({ title, of, count = 0, children, className = "", onOpen }: Props) {
  return (
    <Popover.Root {...(onOpen && { onOpenChange: onOpen })}>
      <Popover.Trigger asChild>
        <button type="button">
          {title}
          {of && <span className="hidden"> of {of}</span>}
          {count > 0 && <span className="tag">{count}</span>}
          <svg viewBox="0 0 10 6" width="10" height="6" aria-hidden="true">
            <path d="M1 1l4 4 4-4" fill="none" stroke="currentColor" strokeWidth="1.5" />
          </svg>
        </button>
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Content
          className={`popup ${className}`}
          align="end"
          sideOffset={6}
          collisionPadding={8}
          aria-label={of ? `${title} of ${of}` : title}
        >
          {children}
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}
