/** Runs a turn with a tool of this program: the server hands its calls off, and goes on with their results. */
import { type ClientFunction, fromEnv } from "@reasond/client/node";

const bookTitle: ClientFunction<{ shelf: string }> = {
  name: "book_title",
  description: "Tells the title of the book on a shelf.",
  parameters: { type: "object", properties: { shelf: { type: "string" } }, required: ["shelf"] },
  run: ({ shelf }) => (shelf === "A" ? "Opticks" : null),
};
const client = fromEnv();
const result = await client.turn('Tell the book title of "A".', { tools: [bookTitle] });
console.log(result.answer);
client.close();
