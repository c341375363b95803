"use strict";
// What the parts of a comparison share: runs, the axis they lie on, the slider's place, which runs are shown, the picked head.
const cmp = (() => {
  const { runs, axes, groups, metrics } = hw.data;
  const axis = hw.signal(hw.data.against);
  const place = hw.signal(0);
  const picked = hw.signal(null); // {run, head}: head by its place in the run
  const shownChanged = hw.signal(null);
  const hidden = new Set();
  const total = runs.reduce((sum, run) => sum + run.head.length, 0);

  const positions = () => axes[axis.get()];
  /** A place on the axis in words; on the loss axis positions are minus the loss. */
  const words = (x) => (axis.get() === "step" ? `step ${Math.round(x).toLocaleString("en")}` : `loss ${hw.number(-x)}`);

  const found = new Map();
  /** The snapshots of a run on both sides of the s-th position: {low, high, weight, inside}; null when it never was on the axis. */
  function around(r, s) {
    const key = `${axis.get()} ${r} ${s}`;
    if (!found.has(key)) found.set(key, bracket(runs[r][axis.get()], positions()[s]));
    return found.get(key);
  }
  function bracket(xs, x) {
    const known = xs.map((value, i) => [value, i]).filter(([value], i, all) => value !== null && (i === 0 || value !== all[i - 1][0]));
    if (!known.length) return null;
    const after = known.findIndex(([value]) => value >= x);
    const inside = x >= known[0][0] && x <= known.at(-1)[0];
    if (after <= 0) {
      const only = known[after < 0 ? known.length - 1 : 0][1];
      return { low: only, high: only, weight: 0, inside };
    }
    const [[x0, low], [x1, high]] = [known[after - 1], known[after]];
    return { low, high, weight: (x - x0) / (x1 - x0), inside };
  }

  /** The number at offset(snapshot) between two snapshots; an exact hit reads one alone. */
  function mix(values, b, offset) {
    if (b.weight === 0) return values[offset(b.low)];
    if (b.weight === 1) return values[offset(b.high)];
    return (1 - b.weight) * values[offset(b.low)] + b.weight * values[offset(b.high)];
  }

  /** [a, b, c, d] of the i-th of n heads (or layers) of a run at the s-th position. */
  function profile(values, r, i, n, s) {
    const b = around(r, s);
    if (!b || !values) return [NaN, NaN, NaN, NaN];
    const [a, c, d] = [0, 1, 2].map((k) => mix(values, b, (snapshot) => 3 * (snapshot * n + i) + k));
    return [a + 0.5, 0.5 - a - c - d, c, d];
  }

  const headName = (layer, head) => `L${String(layer).padStart(2, "0")}.H${String(head).padStart(2, "0")}`;
  const nameOf = (r, h) => headName(runs[r].layer[h], runs[r].head[h]);
  const layersOf = (r) => [...new Set(runs[r].layer)];
  const layers = [...new Set(runs.flatMap((run) => run.layer))].sort((x, y) => x - y);

  /** Runs are told apart by colour and shape together: 64 pairs before one comes twice. */
  const colour = (r) => hw.marks.group(r);
  const shape = (r) => hw.marks.layerShape((r % 8) + Math.floor(r / 8));
  const dash = (r) => hw.marks.layerDash((r % 8) + Math.floor(r / 8));

  function mark(shapeName, fill) {
    const canvas = hw.el("canvas", { width: 32, height: 32, style: "width:16px;height:16px" });
    const c = canvas.getContext("2d");
    c.scale(2, 2);
    hw.marks.paint(c, shapeName, 8, 8, 5.5, fill, fill);
    return canvas;
  }

  /** Buttons that show and hide runs; every legend of the page follows. */
  function legend(into) {
    const buttons = runs.map((run, r) => hw.el("button", { type: "button", "aria-pressed": "true", "data-run": String(r),
      title: "show or hide this run; double-click shows it alone", onclick: () => toggle(r), ondblclick: () => alone(r) }, mark(shape(r), colour(r)), run.name));
    const every = (words, keep) => hw.el("button", { type: "button", onclick: () => { hidden.clear(); if (!keep) runs.forEach((_, r) => hidden.add(r)); shownChanged.set(null); } }, words);
    into.append(hw.el("div", { class: "legend" }, buttons, runs.length > 3 ? [every("show all", true), every("hide all", false)] : []));
    shownChanged.listen(() => buttons.forEach((button, r) => button.setAttribute("aria-pressed", String(!hidden.has(r)))));
  }
  function toggle(r) {
    if (!hidden.delete(r)) hidden.add(r);
    shownChanged.set(null);
  }
  function alone(r) {
    runs.forEach((_, i) => (i === r ? hidden.delete(i) : hidden.add(i)));
    shownChanged.set(null);
  }

  /** A part that is built when its details are opened; ``open``: at once. */
  function onDemand(into, body, build, words, open) {
    const details = hw.el("details", {}, hw.el("summary", {}, words), body);
    let built = false;
    details.addEventListener("toggle", () => { if (details.open && !built) { built = true; build(); } });
    into.append(details);
    if (open) details.open = true;
  }

  return { runs, groups, metrics, layers, onDemand, total, axis, place, picked, positions, words, around, mix, profile, headName, nameOf, layersOf,
    colour, shape, dash, mark, legend, shown: (r) => !hidden.has(r), onShown: shownChanged.listen };
})();

hw.ready(() => {
  const percent = (value) => (value === null ? "–" : `${Math.round(100 * value)} %`);
  const rows = hw.data.summaries;
  const number = (key, title, tip, text) => ({ key, title, tip, number: true, value: (i) => rows[i][key], text });
  hw.table(hw.byId("run-table"), {
    label: "runs", count: () => rows.length,
    columns: [
      { key: "run", title: "run", value: (i) => rows[i].run },
      { key: "group", title: "group", value: (i) => rows[i].group },
      { key: "seed", title: "seed", value: (i) => rows[i].seed ?? "?" },
      number("n_heads", "heads", "watched query heads"),
      number("last_step", "last step", "newest snapshot"),
      number("last_loss", "loss", "lowest training loss so far"),
      number("median_drift", "drift", "median over heads: distance of the profile from its first snapshot"),
      number("median_path", "path", "median over heads: length of the profile's way"),
      number("left_null", "left chance", "share of heads that left what chance gives", percent),
      number("median_left_step", "at step", "median step at which heads left chance"),
      number("low_rank", "rank < 2", "share of heads whose stable rank fell below 2", percent),
      number("parity_changes", "flips", "parity changes, all heads together"),
      { key: "note", title: "note", value: (i) => rows[i].note },
    ],
  });
});
