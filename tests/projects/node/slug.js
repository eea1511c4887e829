// A title as the last part of an address.
export function slug(title) {
  return title.toLowerCase().replace(/[^a-z0-9]+/, "-").replace(/^-|-$/g, "");
}
