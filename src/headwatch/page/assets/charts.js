"use strict";
// Plotly, unpacked when the first chart comes into sight, in the page's own colours.
hw.plotly = (() => {
  let loading = null;
  async function load() {
    const packed = hw.byId("hw-plotly");
    if (!packed) throw new Error("this page carries no plotly");
    const source = await (await hw.gunzip(packed.textContent)).blob();
    packed.remove();
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    await new Promise((done, failed) => {
      document.head.append(hw.el("script", { src: address, onload: done, onerror: () => failed(new Error("plotly could not be loaded")) }));
    });
    URL.revokeObjectURL(address);
    return window.Plotly;
  }
  return () => (loading ??= load());
})();

/** The look that every chart shares; ``more`` overrides it. */
hw.layout = (more = {}) => {
  const c = hw.theme.colour;
  const axis = { gridcolor: c("line"), zerolinecolor: c("line"), linecolor: c("faint"), tickcolor: c("faint"), automargin: true };
  const { xaxis, yaxis, margin, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: c("ink"), family: "system-ui, sans-serif", size: 13 },
    hoverlabel: { bgcolor: c("card"), bordercolor: c("faint"), font: { color: c("ink") }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: c("faint"), activecolor: c("accent") },
    margin: { l: 62, r: 18, t: 46, b: 48, ...margin }, hovermode: "closest", showlegend: true,
    legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0 },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
};

/** A chart in ``into``: ``build()`` returns {data, layout}. After ``draw()`` it is called at once in sight, else when the chart comes into sight. */
hw.chart = (into, build, { height = 420, label = "chart", onready = () => {} } = {}) => {
  const box = hw.el("div", { class: "chart", role: "img", "aria-label": label, style: `height:${height}px` });
  into.append(box);
  let visible = false;
  let stale = true;
  let pending = Promise.resolve();
  let first = true;

  async function paint() {
    const plotly = await hw.plotly();
    const { data, layout } = build();
    await plotly.react(box, data, hw.layout(layout), { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
    if (first) { first = false; onready(box); }
    box.dataset.drawn = String(Number(box.dataset.drawn ?? 0) + 1);
  }
  let queued = false;
  function draw() {
    stale = true;
    if (!visible || queued) return pending;
    queued = true;
    stale = false;
    pending = pending.then(() => { queued = false; return paint(); });
    return pending;
  }
  new IntersectionObserver((entries) => {
    visible = entries.at(-1).isIntersecting;
    if (visible && stale) draw();
  }, { rootMargin: "200px" }).observe(box);
  hw.theme.listen(draw);
  return { box, draw };
};
