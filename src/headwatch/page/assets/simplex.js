"use strict";
// The 3-simplex in three dimensions on a canvas: drag turns it, the wheel with Ctrl or the buttons zoom, hover names heads.
hw.simplex = (into, heads) => {
  // heads: {count, profile(i, s) → [a, b, c, d], label(i, s) → lines, colour(i, s), shape(i, s), shown(i), picked(i), onpick(i), trail()}
  const vertices = [[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]];
  const names = ["a: antisymmetric", "b: hyperbolic", "c: positive semidefinite", "d: negative semidefinite"];
  const edges = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
  const middle = [1, 0, 0];
  const home = { yaw: -0.95, pitch: 0.5, zoom: 1, centre: [-0.05, 0, 0] };
  const view = { ...home };
  let step = 0;
  let hovered = -1;
  let places = new Float32Array(0);

  const canvas = hw.el("canvas", { class: "simplex", tabindex: "0", role: "img", "aria-label": "heads in the simplex of profiles; arrow keys turn it, plus and minus zoom; the table of heads holds the same numbers" });
  const button = (words, run) => hw.el("button", { type: "button", onclick: () => { run(); draw(); } }, words);
  into.append(hw.el("div", { class: "controls" }, button("zoom in", () => zoom(1.4)), button("zoom out", () => zoom(1 / 1.4)),
    button("fit the heads", fit), button("whole simplex", () => Object.assign(view, home))), canvas);

  const point = (p) => [0, 1, 2].map((k) => p[0] * vertices[0][k] + p[1] * vertices[1][k] + p[2] * vertices[2][k] + p[3] * vertices[3][k]);
  const size = () => [canvas.clientWidth, canvas.clientHeight];

  function project([x, y, z]) {
    const [width, height] = size();
    const scale = 0.265 * Math.min(width, height * 1.15) * view.zoom;
    const [cx, cy, cz] = [x - view.centre[0], y - view.centre[1], z - view.centre[2]];
    const [sy, cy_] = [Math.sin(view.yaw), Math.cos(view.yaw)];
    const [sp, cp] = [Math.sin(view.pitch), Math.cos(view.pitch)];
    const across = cx * cy_ + cy * sy;
    const away = -cx * sy + cy * cy_;
    return [width / 2 + scale * across, height / 2 - scale * (cz * cp + away * sp), away * cp - cz * sp];
  }

  function zoom(factor) { view.zoom = Math.max(0.5, Math.min(view.zoom * factor, 400)); }

  function fit() {
    const points = [...Array(heads.count).keys()].filter(heads.shown).map((i) => point(heads.profile(i, step))).filter((p) => p.every(Number.isFinite));
    if (!points.length) return;
    const centre = [0, 1, 2].map((k) => (Math.min(...points.map((p) => p[k])) + Math.max(...points.map((p) => p[k]))) / 2);
    const reach = Math.max(1e-4, ...points.map((p) => Math.hypot(p[0] - centre[0], p[1] - centre[1], p[2] - centre[2])));
    Object.assign(view, { centre, zoom: Math.min(1.5 / reach, 400) });
  }

  function line(c, from, to, colour, width, dash = []) {
    const [p, q] = [project(from), project(to)];
    c.beginPath();
    c.setLineDash(dash);
    c.moveTo(p[0], p[1]);
    c.lineTo(q[0], q[1]);
    c.strokeStyle = colour;
    c.lineWidth = width;
    c.stroke();
    c.setLineDash([]);
  }

  function frame(c) {
    const [faint, theta, ink] = ["faint", "theta", "ink"].map(hw.theme.colour);
    const depths = vertices.map((v) => project(v)[2]);
    const hidden = depths.indexOf(Math.max(...depths));
    edges.forEach(([i, j]) => line(c, vertices[i], vertices[j], faint, 1, i === hidden || j === hidden ? [4, 4] : []));
    line(c, middle, vertices[2], theta, 3);
    line(c, middle, vertices[3], theta, 3);
    const m = project(middle);
    hw.marks.paint(c, "square", m[0], m[1], 6, theta, hw.theme.colour("card"));
    c.font = "13px system-ui, sans-serif";
    c.fillStyle = theta;
    c.textAlign = "right";
    c.fillText("M: chance", m[0] - 10, m[1] + 16);
    c.fillStyle = ink;
    c.textAlign = "center";
    vertices.forEach((v, i) => {
      const [x, y] = project(v.map((k) => 1.13 * k));
      c.fillText(names[i], Math.max(85, Math.min(x, size()[0] - 85)), y + 4);
    });
  }

  function trails(c) {
    const length = Math.min(heads.trail(), step);
    if (!length) return;
    c.lineWidth = 1;
    for (let i = 0; i < heads.count; i++) {
      if (!heads.shown(i)) continue;
      c.beginPath();
      for (let s = step - length; s <= step; s++) {
        const p = project(point(heads.profile(i, s)));
        if (Number.isFinite(p[0])) c.lineTo(p[0], p[1]);
      }
      c.globalAlpha = heads.picked(i) ? 1 : heads.count > 256 ? 0.2 : 0.4;
      c.lineWidth = heads.picked(i) ? 2 : 1;
      c.strokeStyle = heads.colour(i, step);
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  function marks(c) {
    places = new Float32Array(2 * heads.count).fill(NaN);
    const radius = heads.count > 512 ? 3.2 : heads.count > 100 ? 4.2 : 6;
    const edge = hw.theme.colour("card");
    const order = [];
    for (let i = 0; i < heads.count; i++) {
      if (!heads.shown(i)) continue;
      const p = project(point(heads.profile(i, step)));
      if (!Number.isFinite(p[0])) continue;
      places[2 * i] = p[0];
      places[2 * i + 1] = p[1];
      order.push([p[2], i]);
    }
    order.sort((p, q) => q[0] - p[0]);
    for (const [, i] of order) {
      const strong = heads.picked(i) || i === hovered;
      hw.marks.paint(c, heads.shape(i, step), places[2 * i], places[2 * i + 1], strong ? radius * 1.6 : radius, heads.colour(i, step), strong ? hw.theme.colour("ink") : edge);
    }
  }

  let asked = 0;
  function draw() { asked ||= requestAnimationFrame(() => { asked = 0; paint(); }); }
  function paint() {
    const [width, height] = size();
    const sharp = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * sharp) || canvas.height !== Math.round(height * sharp)) {
      canvas.width = Math.round(width * sharp);
      canvas.height = Math.round(height * sharp);
    }
    const c = canvas.getContext("2d");
    c.setTransform(sharp, 0, 0, sharp, 0, 0);
    c.clearRect(0, 0, width, height);
    frame(c);
    trails(c);
    marks(c);
  }

  function nearest(x, y) {
    let best = -1;
    let gap = 12 * 12;
    for (let i = 0; i < heads.count; i++) {
      const d = (places[2 * i] - x) ** 2 + (places[2 * i + 1] - y) ** 2;
      if (d < gap) [best, gap] = [i, d];
    }
    return best;
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, y: e.clientY, moved: false }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", (e) => {
    if (drag && !drag.moved) { const i = nearest(e.offsetX, e.offsetY); if (i >= 0) heads.onpick(i); }
    drag = null;
  });
  canvas.addEventListener("pointermove", (e) => {
    if (drag) {
      const [dx, dy] = [e.clientX - drag.x, e.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      view.yaw -= dx * 0.008;
      view.pitch = Math.max(-1.57, Math.min(view.pitch + dy * 0.008, 1.57));
      drag = { x: e.clientX, y: e.clientY, moved: true };
      hw.hint();
      draw();
      return;
    }
    const i = nearest(e.offsetX, e.offsetY);
    if (i !== hovered) { hovered = i; draw(); }
    hw.hint(i >= 0 ? heads.label(i, step) : null, e.clientX, e.clientY);
  });
  canvas.addEventListener("pointerleave", () => { hovered = -1; hw.hint(); draw(); });
  canvas.addEventListener("wheel", (e) => { if (e.ctrlKey) { e.preventDefault(); zoom(Math.exp(-e.deltaY * 0.003)); draw(); } }, { passive: false });
  const keys = { ArrowLeft: () => (view.yaw += 0.12), ArrowRight: () => (view.yaw -= 0.12), ArrowUp: () => (view.pitch += 0.12), ArrowDown: () => (view.pitch -= 0.12), "+": () => zoom(1.25), "-": () => zoom(0.8) };
  canvas.addEventListener("keydown", (e) => { if (keys[e.key]) { keys[e.key](); e.preventDefault(); draw(); } });
  new ResizeObserver(draw).observe(canvas);
  hw.theme.listen(draw);

  return {
    canvas, draw, fit() { fit(); draw(); },
    show(s) { step = s; draw(); },
    /** Where a head is painted, in pixels of the canvas. */
    at: (i) => { paint(); return [places[2 * i], places[2 * i + 1]]; },
  };
};
