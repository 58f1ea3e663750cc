// Server-sent events of a chat, as they come: objects, and null at the end ([DONE]).
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      for (;;) {
        const end = rest.search(/\r?\n\r?\n/);
        if (end < 0) break;
        const event = rest.slice(0, end);
        rest = rest.slice(end).replace(/^\r?\n\r?\n/, "");
        const data = event
          .split(/\r?\n/)
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart())
          .join("\n");
        if (!data) continue; // a comment that keeps the connection alive
        if (data === "[DONE]") {
          yield null;
          return;
        }
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
