import { readFileSync } from "node:fs";
import type { SecureClientSessionOptions } from "node:http2";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Client } from "./client.js";
import type { CallSettings } from "./transport.js";

export * from "./index.js";

const DEFAULT_TARGET = "127.0.0.1:50051";
const MAX_MESSAGE_BYTES = 4 * 1024 * 1024;
const KEEPALIVE = { pingIntervalMs: 30_000, pingTimeoutMs: 10_000 };

/** Settings of a client in Node. */
export interface NodeSettings extends CallSettings {
  /** `host:port` or `dns:///host:port`; "127.0.0.1:50051" unless given. */
  target?: string;
  /** True for TLS with the root certificates of Node, or certificates in PEM. */
  tls?: boolean | Pick<SecureClientSessionOptions, "ca" | "cert" | "key">;
  /** Without TLS, a token for another machine is refused unless this is true; for networks that encrypt themselves. */
  allowPlaintextToken?: boolean;
}

/** Return a client of a server; nothing is sent before the first call. Throws TypeError if a setting is invalid. */
export function connect(settings: NodeSettings = {}): Client {
  const { target = DEFAULT_TARGET, token, tls = false } = settings;
  if (/^(https?|unix):/i.test(target) || target.includes(",") || !target.trim()) {
    throw new TypeError(`target is one address such as "127.0.0.1:50051", not ${JSON.stringify(target)}`);
  }
  const baseUrl = `${tls ? "https" : "http"}://${target.replace(/^(dns|ipv4|ipv6):(\/\/[^/]*\/)?/, "")}`;
  const isLocal = /^(localhost|\[::1\]|127\.\d+\.\d+\.\d+)$/.test(new URL(baseUrl).hostname);
  if (token && !tls && !settings.allowPlaintextToken && !isLocal) {
    const remedy = "pass tls: true, or allowPlaintextToken: true where something else encrypts (a mesh, a tunnel)";
    throw new TypeError(`the token would cross the network in plain text to ${target}: ${remedy}`);
  }
  const sessionManager = new Http2SessionManager(baseUrl, KEEPALIVE, typeof tls === "object" ? tls : {});
  const transport = createGrpcTransport({ baseUrl, sessionManager, readMaxBytes: MAX_MESSAGE_BYTES });
  return new Client(transport, settings, () => sessionManager.abort());
}

/**
 * Return a client with the settings of REASOND_TARGET, _TOKEN, _TLS, _CA_FILE, _TIMEOUT_S and _ALLOW_PLAINTEXT_TOKEN.
 * A CA file turns TLS on. Throws if a variable is invalid or the CA file cannot be read.
 */
export function fromEnv(environ: Readonly<Record<string, string | undefined>> = process.env): Client {
  const read = (name: string) => environ[name]?.trim() || undefined;
  const isOn = (name: string) => {
    const value = read(name) ?? "off";
    if (/^(1|true|yes|on|0|false|no|off)$/i.test(value)) return /^(1|true|yes|on)$/i.test(value);
    throw new TypeError(`${name} must be one of 1, true, yes, on, 0, false, no, off, not ${value.slice(0, 40)}`);
  };
  const timeoutS = read("REASOND_TIMEOUT_S");
  const caFile = read("REASOND_CA_FILE");
  if (caFile && read("REASOND_TLS") && !isOn("REASOND_TLS")) {
    throw new TypeError("REASOND_CA_FILE is set but REASOND_TLS turns TLS off; unset one of them");
  }
  return connect({
    target: read("REASOND_TARGET"),
    token: read("REASOND_TOKEN"),
    tls: caFile ? { ca: readFileSync(caFile) } : isOn("REASOND_TLS"),
    timeoutMs: timeoutS === undefined ? undefined : Number(timeoutS.replace(/^inf$/i, "Infinity")) * 1000,
    allowPlaintextToken: isOn("REASOND_ALLOW_PLAINTEXT_TOKEN"),
  });
}
