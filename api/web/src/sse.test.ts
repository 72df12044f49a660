import { describe, expect, test } from "vitest";
import { MessageParser, messages } from "./sse";

describe("server-sent events", () => {
  test("come whole whatever pieces they arrive in", () => {
    const text = 'id: 7\nevent: worker.lost\ndata: {"seq":7}\n\n: keep-alive\n\nid: 8\ndata: a\ndata: b\n\n';
    for (let size = 1; size <= text.length; size++) {
      const parser = new MessageParser();
      const got = Array.from({ length: Math.ceil(text.length / size) }, (_, at) =>
        parser.push(text.slice(at * size, (at + 1) * size)),
      ).flat();
      expect(got).toEqual([
        { id: "7", event: "worker.lost", data: '{"seq":7}' },
        { id: "8", event: "message", data: "a\nb" },
      ]);
    }
  });

  test("may end their lines in any of the three ways", () => {
    for (const end of ["\n", "\r\n", "\r"]) {
      const parser = new MessageParser();
      expect(
        [...parser.push(`data: x${end}${end}`), ...parser.push(": end")].map((message) => message.data),
      ).toEqual(["x"]);
    }
  });

  test("that are only comments are no messages", () => {
    expect(new MessageParser().push(": ping\n\n: ping\n\n")).toEqual([]);
  });

  test("keep characters that are cut in two by the network", async () => {
    const bytes = new TextEncoder().encode("data: größer\n\n");
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        controller.enqueue(bytes.slice(0, 9));
        controller.enqueue(bytes.slice(9));
        controller.close();
      },
    });
    const got: string[] = [];
    for await (const batch of messages(body, 1000)) got.push(...batch.map((message) => message.data));
    expect(got).toEqual(["größer"]);
  });

  test("that stay away without a keep-alive end the connection", async () => {
    const silent = new ReadableStream<Uint8Array>();
    await expect(messages(silent, 10).next()).rejects.toThrow("no keep-alive for 10 ms");
  });
});
