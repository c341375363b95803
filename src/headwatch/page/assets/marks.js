"use strict";
// Shapes and colours that can be told apart by every eye, on a canvas and in plotly alike.
hw.marks = (() => {
  const shapes = {
    circle: (c, r) => c.arc(0, 0, r, 0, 2 * Math.PI),
    square: (c, r) => c.rect(-0.85 * r, -0.85 * r, 1.7 * r, 1.7 * r),
    "triangle-up": (c, r) => corners(c, r * 1.2, [-90, 30, 150]),
    "triangle-down": (c, r) => corners(c, r * 1.2, [90, 210, 330]),
    diamond: (c, r) => corners(c, r * 1.2, [0, 90, 180, 270]),
    pentagon: (c, r) => corners(c, r * 1.1, [-90, -18, 54, 126, 198]),
    cross: (c, r) => corners(c, r * 1.15, [-75, -15, 15, 75, 105, 165, 195, 255].flatMap((a, i) => (i % 2 ? [a, a + 15] : [a]))),
    star: (c, r) => corners(c, r * 1.3, [...Array(10).keys()].map((i) => -90 + 36 * i), [1, 0.45]),
  };
  const byLayer = ["circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "cross", "star"];
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

  function corners(c, r, degrees, radii = [1]) {
    degrees.forEach((degree, i) => {
      const angle = (degree * Math.PI) / 180;
      const size = r * radii[i % radii.length];
      c[i ? "lineTo" : "moveTo"](size * Math.cos(angle), size * Math.sin(angle));
    });
    c.closePath();
  }

  /** Paint one mark at (x, y). */
  function paint(c, shape, x, y, r, fill, edge) {
    c.save();
    c.translate(x, y);
    c.beginPath();
    shapes[shape](c, r);
    c.fillStyle = fill;
    c.fill();
    c.strokeStyle = edge;
    c.lineWidth = 0.8;
    c.stroke();
    c.restore();
  }

  const scales = {
    light: [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 148, 122], [90, 165, 60], [180, 150, 20]],
    dark: [[170, 120, 230], [110, 140, 250], [70, 185, 210], [70, 205, 150], [160, 220, 90], [250, 220, 70]],
  };
  /** A colour that runs from dark to light with depth. */
  function depth(i, n) {
    const scale = scales[hw.theme.name()];
    const at = ((scale.length - 1) * i) / Math.max(n - 1, 1);
    const low = Math.min(Math.floor(at), scale.length - 2);
    const mixed = scale[low].map((x, k) => Math.round(x + (scale[low + 1][k] - x) * (at - low)));
    return `rgb(${mixed.join(",")})`;
  }

  /** Colours of groups without order (runs, say), told apart by colour-blind eyes (Okabe and Ito). */
  const groups = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#b8a800"];
  return {
    paint, depth, byLayer, dashes, groups,
    layerShape: (i) => byLayer[i % byLayer.length],
    layerDash: (i) => dashes[i % dashes.length],
    group: (i) => groups[i % groups.length],
  };
})();
