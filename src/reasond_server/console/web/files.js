// Files and folders that a person chose, as the methods take them; nothing is sent before the form is.

const SKIPPED = /(^|\/)(\.git|\.hg|\.svn|\.venv|venv|node_modules|__pycache__|\.[a-z]+_cache)\//;
const MOST_BYTES = 4 * 1024 * 1024; // A call has 8 MiB, and base64 adds a third.

function requireRoom(files) {
  const size = files.reduce((sum, each) => sum + each.size, 0);
  if (size <= MOST_BYTES) return;
  const error = new Error(`The files have ${(size / 1048576).toFixed(1)} MiB; a call from this page takes 4 MiB.`);
  throw Object.assign(error, { remedy: "Choose a smaller folder, or use the command line." });
}

const readBase64 = (file) =>
  new Promise((go, leave) => {
    const reader = new FileReader();
    reader.onload = () => go(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => leave(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });

export async function readImages(files) {
  const chosen = [...files];
  requireRoom(chosen);
  return Promise.all(chosen.map(async (file) => ({ media_type: file.type, data: await readBase64(file) })));
}

async function readSource(file) {
  const path = file.webkitRelativePath.split("/").slice(1).join("/") || file.name;
  try {
    return { path, content: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer()) };
  } catch {
    return { path, content_base64: await readBase64(file) };
  }
}

// The code in a folder, without what its tools make and fetch.
export async function readFolder(files) {
  const code = [...files].filter((file) => !SKIPPED.test(file.webkitRelativePath));
  requireRoom(code);
  return Promise.all(code.map(readSource));
}

// Hands a text to the browser as a file.
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1_000);
}
