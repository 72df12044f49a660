/** Server-sent events as they arrive: bytes in pieces of any size → whole messages. */

export interface Message {
  id: string;
  event: string;
  data: string;
}

/** One connection's parser. Feed it text in pieces; it returns the messages that became whole. */
export class MessageParser {
  private rest = "";
  private id = "";
  private event = "";
  private data: string[] = [];

  push(piece: string): Message[] {
    const lines = (this.rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.take(line));
  }

  private take(line: string): Message[] {
    if (line === "") return this.flush();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id" && !value.includes("\0")) this.id = value;
    return [];
  }

  private flush(): Message[] {
    const { data, event, id } = this;
    this.data = [];
    this.event = "";
    return data.length === 0 ? [] : [{ id, event: event || "message", data: data.join("\n") }];
  }
}

/** The messages of a response body, piece by piece; ends when the server closes or nothing came for `silence_ms`. */
export async function* messages(
  body: ReadableStream<Uint8Array>,
  silenceMs: number,
): AsyncGenerator<Message[]> {
  const parser = new MessageParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await withDeadline(reader.read(), silenceMs);
      if (done) return;
      yield parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function withDeadline<T>(work: Promise<T>, deadlineMs: number): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`no message and no keep-alive for ${deadlineMs} ms`)),
      deadlineMs,
    );
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}
