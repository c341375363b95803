"use strict";
// The 3-simplex in three dimensions on a canvas: drag turns it, the wheel with Ctrl or the buttons zoom, hover names heads.
hw.simplex = (into, heads) => {
  // heads: {count, profile(i, s) → [a, b, c, d], label(i, s) → lines, colour(i, s), shape(i, s), shown(i), picked(i), onpick(i), trail()}
  const vertices = [[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]];
  const names = ["a: antisymmetric", "b: hyperbolic", "c: positive semidefinite", "d: negative semidefinite"];
  const edges = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
  const middle = [1, 0, 0];
  // Rows: to the right, up, towards the reader. The home view is the flat tetrahedron of the paper figures, Θ spread open.
  const home = { turn: [[-0.7765, 0.1699, -0.6068], [-0.6289, -0.269, 0.7295], [0.0393, -0.948, -0.3157]], zoom: 1, centre: [-0.32, -0.04, 0.02] };
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
    const scale = 0.242 * Math.min(width, height * 1.1) * view.zoom;
    const [cx, cy, cz] = [x - view.centre[0], y - view.centre[1], z - view.centre[2]];
    const [right, up, near] = view.turn.map((row) => row[0] * cx + row[1] * cy + row[2] * cz);
    return [width / 2 + scale * right, height / 2 - scale * up, near];
  }

  /** Turn the view by an angle about the screen's upright (yaw) and level (pitch) axes. */
  function turn(yaw, pitch) {
    const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
    const mix = (p, q, a, b) => p.map((x, k) => a * x + b * q[k]);
    let [right, up, near] = view.turn;
    [right, near] = [mix(right, near, cy, sy), mix(right, near, -sy, cy)];
    [up, near] = [mix(up, near, cp, -sp), mix(up, near, sp, cp)];
    view.turn = [right, up, near];
  }

  /** Whether an edge lies behind: both faces that meet in it look away. */
  function behind(edge) {
    const flat = vertices.map((v) => project(v));
    const others = [0, 1, 2, 3].filter((k) => !edge.includes(k));
    const looksAway = (corner, beyond) => {
      const [p, q, r, s] = [...edge, corner, beyond].map((k) => flat[k]);
      const [ux, uy, uz, vx, vy, vz] = [q[0] - p[0], p[1] - q[1], q[2] - p[2], r[0] - p[0], p[1] - r[1], r[2] - p[2]];
      const scale = 1 / (0.242 * Math.min(size()[0], size()[1] * 1.1) * view.zoom);
      const normal = [(uy * vz - uz * vy) * scale, (uz * vx - ux * vz) * scale, (ux * vy - uy * vx) * scale * scale];
      const inward = normal[0] * (s[0] - p[0]) * scale + normal[1] * (p[1] - s[1]) * scale + normal[2] * (s[2] - p[2]);
      return inward > 0 ? normal[2] > 0 : normal[2] < 0;
    };
    return looksAway(others[0], others[1]) && looksAway(others[1], others[0]);
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
    edges.forEach((edge) => line(c, vertices[edge[0]], vertices[edge[1]], faint, 1, behind(edge) ? [4, 4] : []));
    line(c, middle, vertices[2], theta, 3);
    line(c, middle, vertices[3], theta, 3);
    const m = project(middle);
    hw.marks.paint(c, "square", m[0], m[1], 6, theta, hw.theme.colour("card"));
    c.font = "13px system-ui, sans-serif";
    c.fillStyle = theta;
    c.textAlign = "right";
    c.fillText("M: chance", m[0] - 12, m[1] + 14);
    c.fillStyle = ink;
    c.textAlign = "center";
    vertices.forEach((v, i) => label(c, names[i], project(v), project([0, 0, 0])));
  }

  /** A vertex's name, pushed outwards and kept on the canvas. */
  function label(c, words, [x, y], [cx, cy]) {
    const [dx, dy] = [x - cx, y - cy];
    const far = Math.hypot(dx, dy) || 1;
    const half = c.measureText(words).width / 2;
    const [right, down] = [dx / far, dy / far];
    const at = x + right * (14 + half * Math.min(1, Math.abs(right) * 1.3));
    const kept = Math.max(half + 4, Math.min(at, size()[0] - half - 4));
    const below = Math.abs(kept - at) > 6 ? 18 : 0;
    c.fillText(words, kept, Math.max(16, Math.min(y + down * 18 + 4 + below, size()[1] - 8)));
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
    order.sort((p, q) => p[0] - q[0]);
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
      turn(dx * 0.008, dy * 0.008);
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
  const keys = { ArrowLeft: () => turn(-0.12, 0), ArrowRight: () => turn(0.12, 0), ArrowUp: () => turn(0, -0.12), ArrowDown: () => turn(0, 0.12), "+": () => zoom(1.25), "-": () => zoom(0.8) };
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
