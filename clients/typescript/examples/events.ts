/** Streams a task's steps without this package: fetch reads the events of the server's HTTP listener, as in a page. */
const [url = "http://127.0.0.1:8001"] = process.argv.slice(2);
const params = { query: "What is 15% of 240?" };
const response = await fetch(`${url}/api/v1/jsonrpc`, {
  method: "POST",
  headers: {
    "Content-Type": "application/json",
    Accept: "text/event-stream",
    Authorization: `Bearer ${process.env.REASOND_TOKEN}`,
  },
  body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "reasoning.execute", params }),
});
const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
let unread = "";
for (let chunk = await reader?.read(); chunk?.value; chunk = await reader?.read()) {
  const blocks = (unread + chunk.value).split(/\r?\n\r?\n/);
  unread = blocks.pop() ?? "";
  for (const block of blocks) {
    const event = /^event: (.*)$/m.exec(block)?.[1];
    const data = /^data: (.*)$/m.exec(block)?.[1] ?? "{}";
    if (event) console.log(event, JSON.parse(data).completed?.answer ?? "");
  }
}
