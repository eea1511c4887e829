export { Code } from "@connectrpc/connect";
export * from "./client.js";
export * from "./errors.js";
export * from "./gen/messages.js";
export * from "./stream.js";
export * from "./tools.js";
export type { CallSettings, Token } from "./transport.js";
