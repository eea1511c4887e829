/** Has failing code repaired; the server needs [repair] and an environment named "python". */
import { fromEnv, newRequestId, ResultFormat } from "@reasond/client/node";

const [files, text] = [new Map<string, string>(), new TextEncoder()];
files.set("calc.py", "def add(a, b):\n    return a - b\n");
files.set("test_calc.py", "from calc import add\n\nassert add(2, 3) == 5\n");

const client = fromEnv();
const check = { name: "sum", argv: ["python3", "test_calc.py"], format: ResultFormat.EXIT_CODE };
const task = {
  description: "The sum is wrong.",
  goal: { case: "fix" as const, value: {} },
  code: {
    case: "files" as const,
    value: { files: Array.from(files, ([path, code]) => ({ path, content: text.encode(code) })) },
  },
  environment: "python",
  checks: [check],
};
const { repair } = await client.repairs.repair(
  { task, requestId: newRequestId() },
  { timeoutMs: Number.POSITIVE_INFINITY },
);
console.log(repair?.isAccepted ? repair.patch : repair?.warnings);
client.close();
