"use strict";
// A table that sorts by a click on its head and filters by words and conditions such as "L03 stable_rank<2".
hw.table = (into, { columns, count, page = 50, onpick = () => {}, picked = () => false, label = "table" }) => {
  // columns: {key, title, tip, value(row) → number | string, text(value) → string, number: bool}
  let order = [];
  let sorting = { key: null, down: false };
  let start = 0;
  const search = hw.el("input", { type: "search", placeholder: "filter: L03  I+  stable_rank<2", "aria-label": "filter the rows", oninput: () => { start = 0; refresh(); } });
  const trouble = hw.el("span", { class: "note" });
  const head = hw.el("tr");
  const body = hw.el("tbody");
  const pages = hw.el("div", { class: "controls pages" });
  into.append(hw.el("div", { class: "controls" }, search, trouble),
    hw.el("div", { class: "scroll" }, hw.el("table", { "aria-label": label }, hw.el("thead", {}, head), body)), pages);

  for (const column of columns) {
    const press = hw.el("button", { type: "button", title: column.tip ?? "", onclick: () => sort(column.key) }, column.title);
    head.append(hw.el("th", { scope: "col", "data-key": column.key, class: column.number ? "number" : "" }, press));
  }

  const column = (key) => columns.find((c) => c.key === key);
  const rowText = (row) => columns.filter((c) => !c.number).map((c) => String(c.value(row))).join(" ").toLowerCase();

  function condition(word) {
    const match = word.match(/^([\w.]+)(<=|>=|<|>|=)(-?[\d.]+(?:e-?\d+)?)$/i);
    const of = match && column(match[1]);
    if (!of) return (row) => rowText(row).includes(word.toLowerCase());
    const limit = Number(match[3]);
    const test = { "<": (x) => x < limit, ">": (x) => x > limit, "<=": (x) => x <= limit, ">=": (x) => x >= limit, "=": (x) => x === limit }[match[2]];
    return (row) => test(of.value(row));
  }

  function compare(x, y) {
    const [noX, noY] = [x, y].map((v) => v === null || v === undefined || Number.isNaN(v));
    if (noX || noY) return noX - noY;
    const way = typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return sorting.down ? -way : way;
  }

  function refresh() {
    const tests = search.value.trim().split(/\s+/).filter(Boolean).map(condition);
    order = [...Array(count()).keys()].filter((row) => tests.every((test) => test(row)));
    const by = column(sorting.key);
    if (by) {
      const values = new Map(order.map((row) => [row, by.value(row)]));
      order.sort((p, q) => compare(values.get(p), values.get(q)));
    }
    trouble.textContent = `${order.length} of ${count()}`;
    paint();
  }

  function sort(key) {
    sorting = { key, down: sorting.key === key ? !sorting.down : column(key).number };
    for (const cell of head.children) {
      const on = cell.dataset.key === key;
      cell.setAttribute("aria-sort", on ? (sorting.down ? "descending" : "ascending") : "none");
    }
    start = 0;
    refresh();
  }

  function paint() {
    start = Math.max(0, Math.min(start, Math.floor((order.length - 1) / page) * page));
    body.replaceChildren(...order.slice(start, start + page).map((row) => {
      const cells = columns.map((c) => {
        const value = c.value(row);
        return hw.el("td", { class: c.number ? "number" : "", title: c.number ? "" : String(value ?? "") }, c.number && !c.text ? hw.number(value) : c.text ? c.text(value) : String(value ?? ""));
      });
      return hw.el("tr", { class: picked(row) ? "picked" : "", onclick: () => onpick(row), "data-row": String(row) }, cells);
    }));
    const turn = (words, to, off) => hw.el("button", { type: "button", disabled: off, onclick: () => { start = to; paint(); } }, words);
    pages.replaceChildren();
    if (order.length > page) {
      pages.append(turn("‹ back", start - page, start === 0), `rows ${start + 1}–${Math.min(start + page, order.length)} of ${order.length}`,
        turn("on ›", start + page, start + page >= order.length));
    }
  }

  refresh();
  return { refresh, paint, sort };
};
