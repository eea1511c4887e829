/**
 * Calls a server through the browser's entry: gRPC-Web over fetch, through a proxy in this process. Prints one line of
 * JSON with what came of it; the arguments are the server's target and a token.
 */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { ConnectError, type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { connect as connectToServer, ReasondError, ReasoningService } from "../src/node.js";
import { connect } from "../src/web.js";

const [target = "", token = ""] = process.argv.slice(2);
const upstream = connectToServer({ target });
let openStreams = 0;

const callOf = ({ requestHeader, signal }: HandlerContext) => {
  return { headers: { authorization: requestHeader.get("authorization") ?? "" }, signal };
};
const passOn = (failure: unknown) => {
  throw failure instanceof ReasondError ? failure.cause : ConnectError.from(failure);
};
const routes = connectNodeAdapter({
  routes: (router) => {
    router.service(ReasoningService, {
      reason: (request, context) => upstream.reasoning.reason(request, callOf(context)).catch(passOn),
      async *reasonIterations(request, context) {
        openStreams += 1;
        context.signal.addEventListener("abort", () => {
          openStreams -= 1;
        });
        yield* upstream.reasoning.reasonIterations(request, callOf(context));
      },
    });
  },
});
const proxy = createServer(routes);
await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
const baseUrl = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;

const client = connect({ baseUrl, token });
const { answer } = await client.reason("What is 15% of 240?");
const sequences: number[] = [];
const stream = client.reasonIterations("What is 15% of 240?", { keepRunning: true });
for await (const event of stream) sequences.push(Number(event.sequence));
const rest: number[] = [];
const { executionId } = stream.cursor;
for await (const event of client.resume({ executionId, afterSequence: 1n })) rest.push(Number(event.sequence));
for await (const _ of client.reasonIterations("What is 15% of 240?", { keepRunning: true })) break;
while (openStreams > 0) await new Promise((resolve) => setTimeout(resolve, 10));
const error = await client.reason("").catch((reason: unknown) => reason);
const violations = error instanceof ReasondError ? error.violations.map((each) => each.field) : [];
const reason = error instanceof ReasondError ? error.reason : String(error);
console.log(JSON.stringify({ answer, sequences, rest, reason, violations }));
upstream.close();
proxy.close();
proxy.closeAllConnections();
