"use strict";
// Layer × head heat maps of the chosen snapshot, two side by side, with ranges that hold for the whole run.
hr.maps = (body, kind, keys, starts) => {
  const pair = hw.el("div", { class: "pair" });
  body.append(pair);
  starts.filter((key) => keys.includes(key)).forEach((key) => hr.map(pair, kind, keys, key));
};

hr.map = (into, kind, keys, start) => {
  const box = hw.el("div");
  into.append(box);
  let key = start;
  const explanation = hw.el("p", { class: "note" });
  const absent = hw.el("p", { class: "absent trouble", role: "status" });
  const at = () => Math.max(0, kind.at(hr.step.get()));
  const redraw = () => { explanation.textContent = hr.explain(key); hr.tellAbsence(absent, kind, key, at()); chart.draw(); };
  box.append(hw.el("div", { class: "controls" }, hw.choice("metric", keys.map((k) => [k, hr.title(k)]), key, (v) => { key = v; redraw(); }),
    hw.choice("range", [["run", "of the whole run"], ["now", "of this snapshot"]], "run", (v) => { wide = v === "run"; redraw(); })), absent);

  const width = Math.max(...kind.head) + 1;
  const cells = (values) => {
    const rows = kind.layers.map(() => Array(width).fill(null));
    values.forEach((value, i) => { if (Number.isFinite(value)) rows[hr.layerPlace(kind, i)][kind.head[i]] = value; });
    return rows;
  };
  let wide = true;
  function range(s) {
    const [low, high] = wide ? kind.span(key) : hw.quantiles(kind.row(key, s), [0, 1]);
    const reach = Math.max(Math.abs(low), Math.abs(high));
    return low < 0 && high > 0 ? { zmin: -reach, zmax: reach, colorscale: [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]] } : { zmin: low, zmax: high, colorscale: "Cividis" };
  }
  const few = kind.count <= 100;
  const chart = hw.chart(box, () => {
    const s = at();
    const z = cells(kind.row(key, s));
    return {
      data: [{
        type: "heatmap", z, x: [...Array(width).keys()].map((h) => `H${String(h).padStart(2, "0")}`), y: kind.layers.map(hr.layerLabel), ...range(s), hoverongaps: false,
        xgap: few ? 2 : 0, ygap: few ? 2 : 0, colorbar: { thickness: 12, outlinewidth: 0 }, textfont: { size: 12 },
        text: few ? z.map((row) => row.map((v) => (v === null ? "" : hw.number(v)))) : undefined, texttemplate: few ? "%{text}" : undefined,
        hovertemplate: `%{y}.%{x}<br>${hr.title(key)} %{z:.4g}<extra></extra>`,
      }],
      layout: {
        title: { text: `${hr.title(key)}, step ${hw.number(kind.steps[s])}`, x: 0, xref: "paper", font: { size: 14 } }, showlegend: false, margin: { t: 36, l: 46, r: 8, b: 36 },
        xaxis: { showgrid: false, type: "category" }, yaxis: { autorange: "reversed", showgrid: false, type: "category" },
      },
    };
  }, { height: Math.max(300, Math.min(640, 90 + 22 * kind.layers.length)), label: `heat map of ${kind.name}` });
  box.append(explanation);
  [hr.step, hr.grown].forEach((s) => s.listen(redraw));
  redraw();
};
