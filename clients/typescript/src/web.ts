import { createGrpcWebTransport, type GrpcWebTransportOptions } from "@connectrpc/connect-web";
import { Client } from "./client.js";
import type { CallSettings } from "./transport.js";

export * from "./index.js";

/**
 * Return a client that speaks gRPC-Web with a proxy before the server, such as Envoy; `baseUrl` is the proxy's address,
 * such as "https://reason.example".
 */
export function connect(settings: CallSettings & GrpcWebTransportOptions): Client {
  return new Client(createGrpcWebTransport(settings), settings);
}
