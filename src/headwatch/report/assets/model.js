"use strict";
// The run as the figures see it: kinds of measurement, the chosen snapshot, the marked heads, how heads are told apart.
const hr = (() => {
  const typeNames = ["II", "I+", "I−"];
  const typeShapes = ["circle", "triangle-up", "triangle-down"];
  const typeColours = ["two", "plus", "minus"];

  /** Heads × steps of one kind; matrices are flat, one row of heads per step. */
  function kindOf(name, facts, matrices) {
    const kind = {
      name, ...facts, matrices, count: facts.labels.length,
      layers: [...new Set(facts.layer)],
      has: (key) => key in kind.matrices,
      value: (key, s, i) => kind.matrices[key]?.[s * kind.count + i] ?? NaN,
      row: (key, s) => kind.matrices[key]?.subarray(s * kind.count, (s + 1) * kind.count) ?? new Float32Array(kind.count).fill(NaN),
      line: (key, i) => Array.from(kind.steps, (_, s) => kind.value(key, s, i)),
      index: new Map(facts.labels.map((label, i) => [label, i])),
      /** 1st and 99th percentile and maximum of a metric over the whole run; kept until more comes in. */
      span(key) {
        if (!kind.spans.has(key)) kind.spans.set(key, hw.quantiles(kind.matrices[key] ?? [], [0.01, 0.99, 1]));
        return kind.spans.get(key);
      },
      spans: new Map(),
      /** The last snapshot at or before a step. */
      at: (step) => kind.steps.findLastIndex((x) => x <= step),
    };
    return kind;
  }

  async function load() {
    for (const [name, facts] of Object.entries(hw.data.kinds)) {
      const matrices = {};
      for (const key of facts.keys) matrices[key] = await hw.array(`${name}/${key}`);
      hr.kinds[name] = kindOf(name, facts, matrices);
    }
    hr.main = hr.kinds.profile ?? hr.kinds.signature;
    hr.step = hw.signal(hr.main.steps.at(-1));
  }

  const metric = (key) => hw.data.metrics[key] ?? hw.data.metrics[key.replace(/_std$/, "")] ?? { title: key, meaning: "", change: "", cost: "" };
  const title = (key) => (key === "beyond_null" ? "beyond chance" : metric(key).title + (key.endsWith("_std") ? " (std over documents)" : ""));
  /** What the registry says about a metric, in one paragraph. */
  function explain(key) {
    const m = metric(key);
    const range = `Range ${hw.number(m.low ?? -Infinity)} to ${hw.number(m.high ?? Infinity)}${m.unit && m.unit !== "1" ? ` ${m.unit}` : ""}.`;
    const alone = key === "theta_distance" ? " It starts near 0 because M, where chance puts a head, lies on Θ." : "";
    return `${m.meaning} ${m.change} ${range}${alone} Cost: ${m.cost}.`;
  }

  /** What a reader must know where heads of a snapshot have no number: how many, and when they last had; "" where all have. */
  function absence(kind, key, s) {
    const having = (t) => kind.row(key, t).reduce((n, value) => n + Number.isFinite(value), 0);
    const without = kind.count - having(s);
    if (!without) return "";
    const what = key === "a" ? "profile" : `value of “${title(key)}”`;
    const who = without === kind.count ? `No head has a ${what}` : `${without} of ${kind.count} heads have no ${what}`;
    let last = s;
    while (last >= 0 && having(last) < kind.count) last--;
    const before = last < 0 ? "" : ` All had one up to step ${hw.number(kind.steps[last])}.`;
    return `${who} at step ${hw.number(kind.steps[s])}; see the flags in the table of heads.${before}`;
  }
  function tellAbsence(element, kind, key, s) {
    element.textContent = absence(kind, key, s);
    element.hidden = !element.textContent;
  }

  const colouring = hw.signal("type");
  const picked = hw.signal(new Set());
  const hidden = hw.signal(new Set());
  const layerFilter = hw.signal("all");

  const typeOf = (kind, s, i) => kind.value("head_type", s, i);
  const layerPlace = (kind, i) => kind.layers.indexOf(kind.layer[i]);
  const groupOf = (kind, s, i) => (colouring.get() === "type" ? typeOf(kind, s, i) : layerPlace(kind, i));
  const colourOf = (group, n) => (colouring.get() === "layer" ? hw.marks.depth(group, n) : hw.theme.colour(typeColours[group] ?? "faint"));
  const shapeOf = (group) => (colouring.get() === "layer" ? hw.marks.layerShape(group) : typeShapes[group] ?? "cross");

  function pick(label) {
    const next = new Set(picked.get());
    if (!next.delete(label)) next.add(label);
    picked.set(next);
  }

  return {
    kinds: {}, main: null, step: null, load, kindOf, metric, title, explain, tellAbsence, colouring, picked, hidden, layerFilter, pick,
    typeNames, typeShapes, typeColours, typeOf, layerPlace, groupOf, colourOf, shapeOf, grown: hw.signal(0),
  };
})();
