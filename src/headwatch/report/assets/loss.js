"use strict";
// The training loss above a metric's median and band over the same steps, and the metric against the loss.
hr.loss = (body, kind, keys) => {
  let key = keys.includes("drift") ? "drift" : keys[0];
  const explanation = hw.el("p", { class: "note" });
  const redraw = () => { explanation.textContent = hr.explain(key); beside.draw(); against.draw(); };
  body.append(hw.el("div", { class: "controls" }, hw.choice("metric", keys.map((k) => [k, hr.title(k)]), key, (v) => { key = v; redraw(); })), explanation);
  const pair = hw.el("div", { class: "pair" });
  const [left, right] = [hw.el("div"), hw.el("div")];
  pair.append(left, right);
  body.append(pair);
  const everyone = () => [...Array(kind.count).keys()];
  const blue = () => (hw.theme.name() === "dark" ? "rgb(138,180,255)" : "rgb(31,95,191)");

  const beside = hw.chart(left, () => ({
    data: [
      { x: kind.steps, y: kind.loss, mode: kind.steps.length > 60 ? "lines" : "lines+markers", name: "training loss", line: { color: hw.theme.colour("two"), dash: "dash" }, marker: { size: 4, symbol: "square" }, yaxis: "y2",
        hovertemplate: "step %{x}<br>loss %{y:.4g}<extra></extra>" },
      ...hr.bandTraces(kind.steps, hr.bands(kind, key, everyone()), `median ${hr.title(key)}`, blue(), "solid"),
    ],
    layout: {
      xaxis: { title: { text: "optimizer step" }, anchor: "y" }, yaxis: { domain: [0, 0.58], title: { text: hr.title(key) } },
      yaxis2: { domain: [0.64, 1], title: { text: "loss" }, gridcolor: hw.theme.colour("line"), automargin: true },
    },
  }), { height: 460, label: "loss and metric over steps" });

  const against = hw.chart(right, () => {
    const rows = hr.bands(kind, key, everyone());
    const known = kind.loss.map((x, s) => (Number.isFinite(x) ? s : -1)).filter((s) => s >= 0);
    const at = (values) => known.map((s) => values[s]);
    const every = Math.ceil(known.length / 30);
    const sparse = (values) => values.map((v, s) => (s % every ? NaN : v));
    return {
      data: [{
        x: at(kind.loss), y: at(rows.middle), customdata: at(kind.steps), mode: "lines+markers", name: `median ${hr.title(key)}, lighter marks later`, line: { color: blue() },
        marker: { size: 8, color: known, colorscale: "Cividis", line: { color: hw.theme.colour("card"), width: 1 } },
        error_y: { type: "data", symmetric: false, array: sparse(at(rows.high.map((v, s) => v - rows.middle[s]))), arrayminus: sparse(at(rows.middle.map((v, s) => v - rows.low[s]))), thickness: 0.7, width: 0 },
        hovertemplate: "step %{customdata}<br>loss %{x:.4g}<br>median %{y:.4g}<extra></extra>",
      }],
      layout: { xaxis: { title: { text: "training loss (falling to the right)" }, autorange: "reversed" }, yaxis: { title: { text: hr.title(key) } } },
    };
  }, { height: 460, label: "metric against loss" });
  hr.grown.listen(redraw);
  redraw();
};
