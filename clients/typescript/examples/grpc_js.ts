/** The same server over grpc-js, without generated code: the messages come from the descriptor set. */
import { readFileSync } from "node:fs";
import { credentials, loadPackageDefinition, Metadata } from "@grpc/grpc-js";
import { loadFileDescriptorSetFromBuffer } from "@grpc/proto-loader";

const [path = "proto/reasond.binpb"] = process.argv.slice(2);
const options = { keepCase: true, longs: Number, enums: String, oneofs: true };
// biome-ignore lint/suspicious/noExplicitAny: grpc-js knows the services only when it runs
const { reasond } = loadPackageDefinition(loadFileDescriptorSetFromBuffer(readFileSync(path), options)) as any;
const target = process.env.REASOND_TARGET ?? "127.0.0.1:50051";
const client = new reasond.v1.ReasoningService(target, credentials.createInsecure());
const metadata = new Metadata();
metadata.set("authorization", `Bearer ${process.env.REASOND_TOKEN}`);

const call = client.ReasonIterations({ task: { query: "What is 15% of 240?" } }, metadata, {
  deadline: Date.now() + 60_000,
});
for await (const event of call) console.log(event.sequence, event.event);
client.close();
