// Preact and htm, bound together; every text that is shown passes through them and stays text.
import { Component, Fragment, createRef, h, render } from "./preact.js";
import htm from "./htm.js";

export const html = htm.bind(h);
export { Component, Fragment, createRef, render };
