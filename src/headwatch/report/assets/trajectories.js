"use strict";
// Lines over steps: every head, or median and band per layer when there are too many to tell apart.
hr.bands = (kind, key, members) => {
  const rows = { low: [], middle: [], high: [] };
  kind.steps.forEach((_, s) => {
    const values = members.map((i) => kind.value(key, s, i));
    const [low, middle, high] = hw.quantiles(values, [0.1, 0.5, 0.9]);
    rows.low.push(low);
    rows.middle.push(middle);
    rows.high.push(high);
  });
  return rows;
};

/** A median with its band as plotly traces; the band is left away when ``band`` is false. */
hr.bandTraces = (x, rows, name, colour, dash, { band = true, axes = {}, group = name } = {}) => {
  const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: group, ...axes };
  const fill = { ...edge, y: rows.high, fill: "tonexty", fillcolor: colour.replace("rgb(", "rgba(").replace(")", ",.18)") };
  const line = { x, y: rows.middle, mode: "lines", name, legendgroup: group, line: { color: colour, width: 2, dash }, ...axes,
    hovertemplate: `${name}<br>step %{x}<br>median %{y:.4g}<extra></extra>` };
  return band ? [{ ...edge, y: rows.low }, fill, line] : [line];
};

hr.layerLabel = (layer) => `L${String(layer).padStart(2, "0")}`;

hr.trajectories = (body, kind, keys, start) => {
  const many = 200;
  const state = { key: start, view: "auto", logStep: false, logValue: false };
  const explanation = hw.el("p", { class: "note" });
  const redraw = () => { explanation.textContent = hr.explain(state.key); chart.draw(); };
  body.append(hw.el("div", { class: "controls" },
    hw.choice("metric", keys.map((key) => [key, hr.title(key)]), state.key, (v) => { state.key = v; redraw(); }),
    hw.choice("show", [["auto", "what fits"], ["heads", "every head"], ["bands", "median and band per layer"]], "auto", (v) => { state.view = v; redraw(); }),
    hw.choice("layer", [["all", "all"], ...kind.layers.map((l) => [l, hr.layerLabel(l)])], "all", hr.layerFilter.set),
    hw.check("logarithmic steps", false, (v) => { state.logStep = v; redraw(); }),
    hw.check("logarithmic values", false, (v) => { state.logValue = v; redraw(); }),
  ), explanation);

  const members = () => [...Array(kind.count).keys()].filter((i) => hr.layerFilter.get() === "all" || kind.layer[i] === Number(hr.layerFilter.get()));
  const xs = () => (state.logStep ? kind.steps.map((x) => x + 1) : kind.steps);

  function headTraces(shown) {
    const x = xs();
    const seen = new Set();
    return shown.map((i) => {
      const place = hr.layerPlace(kind, i);
      const strong = hr.picked.get().has(kind.labels[i]);
      const first = !seen.has(place);
      seen.add(place);
      return {
        x, y: kind.line(state.key, i), mode: "lines+markers", name: hr.layerLabel(kind.layer[i]), legendgroup: String(place), showlegend: first,
        meta: kind.labels[i], customdata: kind.steps, opacity: strong || !hr.picked.get().size ? 0.9 : 0.25,
        line: { color: hw.marks.depth(place, kind.layers.length), width: strong ? 4 : 1.4, dash: hw.marks.layerDash(place) },
        marker: { size: strong ? 7 : 3.5, symbol: hw.marks.layerShape(place) },
        hovertemplate: `%{meta}<br>step %{customdata}<br>${hr.title(state.key)} %{y:.4g}<extra></extra>`,
      };
    });
  }
  function layerTraces(shown) {
    const layers = [...new Set(shown.map((i) => kind.layer[i]))];
    return layers.flatMap((layer) => {
      const place = kind.layers.indexOf(layer);
      const rows = hr.bands(kind, state.key, shown.filter((i) => kind.layer[i] === layer));
      return hr.bandTraces(xs(), rows, hr.layerLabel(layer), hw.marks.depth(place, kind.layers.length), hw.marks.layerDash(place), { band: layers.length <= 6 });
    });
  }
  function marked(shown) {
    return headTraces(shown.filter((i) => hr.picked.get().has(kind.labels[i]))).map((t) => ({ ...t, name: t.meta, showlegend: true, legendgroup: t.meta }));
  }

  const chart = hw.chart(body, () => {
    const shown = members();
    const each = state.view === "heads" || (state.view === "auto" && shown.length <= many);
    return {
      data: each ? headTraces(shown) : [...layerTraces(shown), ...marked(shown)],
      layout: {
        xaxis: { title: { text: state.logStep ? "optimizer step + 1" : "optimizer step" }, type: state.logStep ? "log" : "linear" },
        yaxis: { title: { text: hr.title(state.key) }, type: state.logValue ? "log" : "linear" },
        legend: { orientation: "v", x: 1.01, y: 1, title: { text: each ? "layer" : "layer median" } },
      },
    };
  }, {
    height: 460, label: `trajectories of ${kind.name}`,
    onready: (box) => box.on("plotly_click", (event) => { const label = event.points[0]?.data.meta; if (label) hr.pick(label); }),
  });
  [hr.picked, hr.layerFilter, hr.grown].forEach((s) => s.listen(redraw));
  redraw();
  return chart;
};
