"use strict";
// The shell's own namespace: data, DOM without HTML strings, numbers as text, troubles shown rather than swallowed.
const hw = (() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("hw-data").textContent);

  function trouble(message) {
    const box = byId("hw-trouble");
    box.hidden = false;
    box.append(el("p", {}, message));
  }
  addEventListener("error", (event) => trouble(`This page met an error: ${event.message}`));
  addEventListener("unhandledrejection", (event) => trouble(`This page met an error: ${event.reason}`));

  /** An element; children are nodes or plain text, never HTML. */
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name in node && typeof value !== "string") node[name] = value;
      else node.setAttribute(name, value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  }

  async function gunzip(base64) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream);
  }

  /** The Float32Array behind packed text: gzip, then bytes transposed. */
  async function unpack(base64) {
    const packed = new Uint8Array(await (await gunzip(base64)).arrayBuffer());
    const n = packed.length / 4;
    const bytes = new Uint8Array(packed.length);
    for (let b = 0; b < 4; b++) for (let i = 0; i < n; i++) bytes[4 * i + b] = packed[b * n + i];
    return new Float32Array(bytes.buffer);
  }

  const unpacked = new Map();
  /** A packed array of this page, as Float32Array; undefined where the page has none of that name. */
  function array(name) {
    if (!unpacked.has(name)) {
      const node = document.querySelector(`.hw-array[data-name="${CSS.escape(name)}"]`);
      unpacked.set(name, node ? unpack(node.textContent) : Promise.resolve(undefined));
      node?.remove();
    }
    return unpacked.get(name);
  }

  /** Run when the whole page is parsed. */
  function ready(run) {
    if (document.readyState === "loading") addEventListener("DOMContentLoaded", run, { once: true });
    else run();
  }

  const missing = "–";
  /** A number with about three digits; a dash where it is missing. */
  function number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return missing;
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en").replace("-", "−");
    const size = Math.abs(value);
    const text = size >= 1e5 || size < 1e-4 ? value.toExponential(2) : size >= 100 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toPrecision(3);
    return text.replace("-", "−");
  }

  /** Quantiles of the finite numbers among values; NaN when there is none. */
  function quantiles(values, qs) {
    const finite = Float64Array.from(values.filter((x) => Number.isFinite(x))).sort();
    return qs.map((q) => {
      const at = (finite.length - 1) * q;
      const low = Math.floor(at);
      return finite.length ? finite[low] + (at - low) * ((finite[low + 1] ?? finite[low]) - finite[low]) : NaN;
    });
  }
  const quantile = (values, q) => quantiles(values, [q])[0];

  /** The body of a section by its id. */
  const section = (id) => document.querySelector(`#${CSS.escape(id)} > .body`);

  /** A labelled choice; options are [value, words] pairs. */
  function choice(label, options, value, onchange) {
    const select = el("select", { onchange: () => onchange(select.value) });
    for (const [key, words] of options) select.append(el("option", { value: String(key) }, words));
    select.value = value;
    return el("label", { class: "control" }, `${label} `, select);
  }

  /** A labelled check box. */
  function check(label, value, onchange) {
    const box = el("input", { type: "checkbox", onchange: () => onchange(box.checked) });
    box.checked = value;
    return el("label", { class: "control" }, box, ` ${label}`);
  }

  const tip = byId("hw-tip");
  /** Show lines of text beside a point of the window; no lines hide it. */
  function hint(lines, x = 0, y = 0) {
    tip.hidden = !lines?.length;
    if (tip.hidden) return;
    tip.replaceChildren(...lines.map((line) => el("div", {}, line)));
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(4, y + 14 + height > innerHeight ? y - height - 10 : y + 14)}px`;
  }

  /** Something that changes and those who want to know. */
  function signal(value) {
    const listeners = [];
    return {
      get: () => value,
      set(next) { value = next; listeners.forEach((listen) => listen(value)); },
      listen(run) { listeners.push(run); },
    };
  }

  return { data, el, array, gunzip, unpack, ready, number, quantile, quantiles, section, choice, check, hint, signal, trouble, byId };
})();
