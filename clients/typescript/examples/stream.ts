/** Streams a task's steps. The stream resumes by itself after a broken connection, and no step comes twice. */
import { FinishReason, fromEnv } from "@reasond/client/node";

const client = fromEnv();
const stream = client.reasonIterations("What is 15% of 240?", { keepRunning: true, reconnect: true });
for await (const { sequence, event } of stream) {
  console.log(Number(sequence), event.case);
}
console.log(FinishReason[stream.result?.finishReason ?? 0], stream.result?.answer);
client.close();
