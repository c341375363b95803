"use strict";
// Distributions over heads: per layer at the slider's place, and along the axis for one layer; bands over a group's runs.
hw.ready(() => {
  const into = hw.section("bands");
  const quantiles = ["10 % of heads", "median of heads", "90 % of heads"];
  const state = { metric: cmp.metrics[0].key, quantile: 1, layer: -1, each: cmp.groups.length === cmp.runs.length, log: false };
  let curves = [];

  const set = (key, read = (x) => x) => (value) => { state[key] = read(value); redraw(); };
  const meaning = hw.el("p", { class: "note" });
  into.append(hw.el("div", { class: "controls" },
    hw.choice("metric", cmp.metrics.map((m) => [m.key, m.title]), state.metric, set("metric")),
    hw.choice("of each layer's heads the", quantiles.map((words, i) => [i, words]), String(state.quantile), set("quantile", Number)),
    hw.check("each run", state.each, set("each")), hw.check("log axis", state.log, set("log"))), meaning);
  cmp.legend(into);

  const metricAt = () => cmp.metrics.findIndex((m) => m.key === state.metric);
  /** A run's number at one position and layer (−1: all layers together); NaN outside the run. */
  function read(r, layer, s) {
    const layers = cmp.layersOf(r);
    const at = layer < 0 ? 0 : 1 + layers.indexOf(layer);
    const b = cmp.around(r, s);
    if (!curves[r] || !b || !b.inside || (layer >= 0 && at === 0)) return NaN;
    const width = (layers.length + 1) * cmp.metrics.length * 3;
    return cmp.mix(curves[r], b, (snapshot) => snapshot * width + (at * cmp.metrics.length + metricAt()) * 3 + state.quantile);
  }

  const shownRuns = () => cmp.runs.map((_, r) => r).filter((r) => cmp.shown(r));
  /** Traces of every group over the given xs; value(r, i) is a run's number at the i-th of them. */
  function traces(xs, value) {
    const out = [];
    cmp.groups.forEach((group, g) => {
      const members = shownRuns().filter((r) => cmp.runs[r].group === g);
      if (!members.length) return;
      const table = members.map((r) => xs.map((_, i) => value(r, i)));
      const columns = xs.map((_, i) => table.map((row) => row[i]).filter(Number.isFinite));
      const style = { color: hw.marks.group(g), dash: hw.marks.layerDash(g) };
      if (members.length > 1) {
        const seen = xs.map((_, i) => i).filter((i) => columns[i].length);
        out.push({ x: [...seen.map((i) => xs[i]), ...[...seen].reverse().map((i) => xs[i])],
          y: [...seen.map((i) => Math.max(...columns[i])), ...[...seen].reverse().map((i) => Math.min(...columns[i]))],
          fill: "toself", fillcolor: `${style.color}33`, line: { color: style.color, width: 0.5 }, mode: "lines", hoverinfo: "skip", showlegend: false, legendgroup: group });
      }
      if (state.each) members.forEach((r, k) => out.push({ x: xs, y: table[k], mode: "lines", name: plain(cmp.runs[r].name), showlegend: false, legendgroup: group,
        line: { color: cmp.colour(r), dash: cmp.dash(r), width: 1 }, hovertemplate: `${plain(cmp.runs[r].name)}: %{y:.4g}<extra></extra>` }));
      out.push({ x: xs, y: columns.map((c) => (c.length ? c.reduce((p, q) => p + q) / c.length : NaN)), mode: "lines+markers", name: `${plain(group)} (${members.length} run${members.length > 1 ? "s" : ""})`, legendgroup: group,
        line: { ...style, width: 2.5 }, marker: { symbol: hw.marks.layerShape(g), size: xs.length > 30 ? 5 : 7 },
        hovertemplate: `${plain(group)}: %{y:.4g}<extra></extra>` });
    });
    return out;
  }
  /** Plotly reads some HTML in names: make it text. */
  function plain(text) { return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%\{/g, "% {"); }

  const title = () => cmp.metrics[metricAt()].title;
  const scale = () => (state.log ? { type: "log" } : {});
  into.append(hw.el("h3", {}, "Every layer, at the slider's place"));
  const byLayer = hw.chart(into, () => {
    const s = cmp.place.get();
    return { data: traces(cmp.layers, (r, i) => read(r, cmp.layers[i], s)),
      layout: { xaxis: { title: { text: `layer, at ${cmp.words(cmp.positions()[s])}` }, dtick: cmp.layers.length > 16 ? undefined : 1 }, yaxis: { title: { text: title() }, ...scale() } } };
  }, { label: "metric by layer" });

  const heading = hw.el("h3", {}, "Along the runs");
  const layerOptions = [["-1", "all layers together"], ...cmp.layers.map((layer) => [String(layer), `L${String(layer).padStart(2, "0")}`])];
  into.append(heading, hw.el("div", { class: "controls" }, hw.choice("layer", layerOptions, "-1", set("layer", Number))));
  const along = hw.chart(into, () => {
    const loss = cmp.axis.get() === "loss";
    const xs = cmp.positions().map((x) => (loss ? -x : x));
    return { data: traces(xs, (r, i) => read(r, state.layer, i)),
      layout: { xaxis: { title: { text: loss ? "lowest training loss so far (falls to the right)" : "step" }, ...(loss ? { autorange: "reversed" } : {}) }, yaxis: { title: { text: title() }, ...scale() } } };
  }, { label: "metric along the runs" });

  function redraw() {
    meaning.textContent = cmp.metrics[metricAt()].tip;
    if (!curves.length) return;
    byLayer.draw();
    along.draw();
  }
  Promise.all(cmp.runs.map((_, r) => hw.array(`curves-${r}`))).then((arrays) => { curves = arrays; redraw(); });
  cmp.place.listen(() => curves.length && byLayer.draw());
  cmp.axis.listen(redraw);
  cmp.onShown(redraw);
});
