import assert from "node:assert/strict";
import test from "node:test";
import { slug } from "./slug.js";

test("marks at the ends are left out", () => assert.equal(slug("?Who - built it?"), "who-built-it"));
