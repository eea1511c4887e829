// Does what main.go does, by a policy of grpc-js: short calls to several servers, and one line of JSON about them.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { parseArgs } from "node:util";

const root = new URL("../../", import.meta.url);
const require = createRequire(new URL("clients/typescript/package.json", root));
const grpc = require("@grpc/grpc-js");
const { loadFileDescriptorSetFromBuffer } = require("@grpc/proto-loader");

const names = ["targets", "policy", "token", "rate", "warm-up", "counted"];
const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) });
const warmUpMs = parseFloat(values["warm-up"]) * 1000;
const untilMs = warmUpMs + parseFloat(values.counted) * 1000;
const set = loadFileDescriptorSetFromBuffer(readFileSync(new URL("proto/reasond.binpb", root)), {});
const { ReasoningService } = grpc.loadPackageDefinition(set).reasond.v1;
const client = new ReasoningService(`ipv4:${values.targets}`, grpc.credentials.createInsecure(), {
  "grpc.service_config": JSON.stringify({ loadBalancingConfig: [JSON.parse(values.policy)] }),
});
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${values.token}`);

const told = { took_ms: [], calls: {}, failed: 0 };
const running = [];
const began = performance.now();
while (performance.now() - began < untilMs) {
  await setTimeout((-Math.log(1 - Math.random()) / Number(values.rate)) * 1000);
  running.push(ask(performance.now() - began >= warmUpMs));
}
await Promise.all(running);
console.log(JSON.stringify(told));
client.close();

function ask(isCounted) {
  const sentMs = performance.now();
  const request = { task: { query: "What is six times seven?" } };
  return new Promise((resolve) => {
    const call = client.Reason(request, metadata, { deadline: Date.now() + 60_000 }, (error) => {
      const server = call.getPeer();
      if (isCounted && error) told.failed += 1;
      if (isCounted && !error) {
        told.took_ms.push(performance.now() - sentMs);
        told.calls[server] = (told.calls[server] ?? 0) + 1;
      }
      resolve();
    });
  });
}
