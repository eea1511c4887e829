import assert from "node:assert/strict";
import test from "node:test";
import { slug } from "./slug.js";

test("a word stays", () => assert.equal(slug("Wall"), "wall"));
test("blanks become hyphens", () => assert.equal(slug("The wall of stone"), "the-wall-of-stone"));
